"""Whole steps, from tokens to logits, as one call against the composition of ops that defines them."""

import gc
import weakref

import numpy as np
import pytest
from decoder_cases import (
    BATCHES,
    FORMATS_READ,
    MODELS,
    VOCABULARY,
    Ends,
    agree,
    batch_of,
    compare_added_up_steps,
    compare_shared_steps,
    compare_steps,
    config,
    having,
    layer_of,
    on_threads,
)

from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.layers.rows import Angles, Rows
from airllm.formats import FORMATS
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import speaking_model

ENDS = {
    "plain": {},
    "scaled, capped": {"embedding_scale": 8.0, "logit_softcap": 1.5},
    "logits scaled": {"embedding_scale": 3.0, "logit_scale": 0.125},
}


@having
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("model", ("llama", "gemma", "small odd heads", "all of these"))
def test_a_step_goes_from_tokens_to_logits(model, kind, reached):
    c = config(**MODELS[model] | ENDS[kind])
    for batch in BATCHES.values():
        compare_steps(c, batch)


@having
@pytest.mark.parametrize("token", (7, np.int64(7)))
def test_a_token_by_itself_gives_logits_without_an_axis(token, reached):
    step = Ends(config(), "f32").step(KernelBackend("cpp"))
    listed, single = (step.run(tokens, *batch_of(config(), BATCHES["long"])[1:]) for tokens in ([7], token))
    assert listed.shape == (1, VOCABULARY) and single.shape == (VOCABULARY,)
    np.testing.assert_array_equal(single, listed[0])


@having
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("batch", ("first token", "eight tokens", "unequal", "sixteen"))
def test_a_step_gives_the_logits_of_all_rows(batch, kind, reached):
    c, ops = config(**ENDS[kind]), KernelBackend("cpp")
    step = Ends(c, "f32").step(ops)
    _, angles, rows = batch_of(c, BATCHES[batch])
    ids = np.random.default_rng(0).integers(0, VOCABULARY, rows[-1].stop).tolist()
    found = step.run(ids, angles, rows, all_rows=True)
    assert found.shape == (len(ids), VOCABULARY) and found.dtype == np.float32
    again = batch_of(c, BATCHES[batch])[2]
    np.testing.assert_array_equal(found[[part.stop - 1 for part in rows]], step.run(ids, angles, again))
    each = batch_of(c, BATCHES[batch])[2]
    for row in range(len(ids)):  # every row as the last one of its sequence
        part = next(part for part in each if part.start <= row < part.stop)
        alone = Rows(0, 1, part.cache)
        turned = [Angles(a.cos[row : row + 1], a.sin[row : row + 1], a.interleaved) for a in angles]
        expected = step.run(ids[row : row + 1], turned, [alone])
        part.cache.extend([ids[row]])
        agree(found[row : row + 1], expected, 2e-5)
    with pytest.raises(TypeError, match="decode_step: all_rows has type int, expected a bool"):
        step.run(ids, angles, rows, all_rows=1)


@having
def test_inputs_of_layers_are_checked(reached):
    c = config(layer_input=48, activation="gelu_tanh")
    step, (_, angles, rows) = Ends(c, "f32").step(KernelBackend("cpp")), batch_of(c, BATCHES["short"])
    with pytest.raises(ValueError, match="decode_step: inputs is None, expected an array"):
        step.run([7], angles, rows)
    for shape in ((2, 1, 47), (1, 1, 48), (2, 48)):
        with pytest.raises(ValueError, match=r"inputs has shape .* expected \(2, 1, 48\)"):
            step.run([7], angles, rows, inputs=np.zeros(shape, np.float32))
    with pytest.raises(TypeError, match="inputs has dtype float64, expected float32"):
        step.run([7], angles, rows, inputs=np.zeros((2, 1, 48)))
    assert np.isfinite(step.run([7], angles, rows, inputs=np.zeros((2, 1, 48), np.float32))).all()


@having
@pytest.mark.parametrize("threads", (2, 3))
def test_threads_share_a_step(threads, target, reached):
    with on_threads(target, reached, threads):
        compare_shared_steps(config(width=256, feed_forward=512, logit_softcap=2.0))
        compare_shared_steps(config(width=256, layer_input=48, layer_scale=True, activation="gelu_tanh"))


@having
def test_a_step_gives_the_same_bits_however_threads_share_it(target, reached):
    """How large each thread's share is follows from the time that the shares took before."""
    c = config(width=256, feed_forward=1024)
    step = Ends(c, "q8_0").step(KernelBackend("cpp"))
    with on_threads(target, reached, 3):
        logits = [step.run([7], *batch_of(c, BATCHES["long"])[1:]) for _ in range(60)]
    assert len({each.tobytes() for each in logits}) == 1
    shares = np.array(target.module.thread_shares())
    assert shares.shape[1] == 3 and np.allclose(shares.sum(1), 1) and np.abs(shares - 1 / 3).max() > 1e-3


@having
@pytest.mark.parametrize("name", ["f16", "bf16", *FORMATS_READ])
def test_a_step_with_stored_weights(name, reached):
    block = FORMATS[name].values if name in FORMATS else 1
    c = config(width=max(block, 96), feed_forward=max(2 * block, 160), heads=8, kv_heads=4)
    # An activation at the edge between two codes may be rounded to either.
    compare_steps(c, BATCHES["unequal"], name, KernelBackend("cpp"), 6e-2)


@having
@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_a_step_whose_embedding_is_not_finite(value, reached):
    def spoil(table):
        table[5, 3] = value

    compare_steps(config(), BATCHES["unequal"], spoil=spoil)
    compare_steps(config(), BATCHES["first token"], spoil=spoil)


@having
def test_what_half_a_layer_gives_is_added_up_where_it_is_asked_for(reached):
    c = config(post_norms=True)
    step = compare_added_up_steps(c)
    _, angles, rows = batch_of(c, BATCHES["two"])

    def fail(change):
        raise RuntimeError("the others are gone")

    with pytest.raises(RuntimeError, match="the others are gone"):
        step.run([1, 2], angles, rows, fail)
    with pytest.raises(TypeError, match="decode_step: reduce has type int"):
        step.run([1, 2], angles, rows, 3)


@having
def test_the_arrays_of_a_step_are_there_whatever_becomes_of_their_lists(reached):
    step = Ends(config(), "f32").step(KernelBackend("cpp"))
    arguments = [(each.cos, each.sin) for each in batch_of(config(), BATCHES["long"])[1]]
    cache = batch_of(config(), BATCHES["long"])[2][0].cache
    rows = [(0, 1, cache.arrays[0][0].copy(), cache.length)]
    kept = [weakref.ref(array) for array in (rows[0][2], *(array for pair in arguments for array in pair))]
    seen = []

    def reduce(change):
        rows.clear(), arguments.clear(), gc.collect()
        seen.extend(ref() is not None for ref in kept)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        reached.decode_step(step._plan, 3, arguments, rows, reduce)
    assert len(seen) >= 3 and all(seen)


WRONG_STEPS = {
    f"tokens has value {VOCABULARY}, expected 0 to {VOCABULARY - 1}": [1, VOCABULARY],
    "tokens has value -1": [-1, 1],
    "tokens has 17 tokens, expected at most 16": [0] * 17,
    "tokens is empty": [],
    "tokens has value -2": -2,
    f"tokens has value {VOCABULARY + 1}": VOCABULARY + 1,
    "tokens has type str": "a",
    "tokens has type ndarray, expected a list or a tuple": np.array([1, 2]),
    "rows has 2 rows, expected as many as come, 1|cos has shape": [1],
    "tokens has type str, expected whole numbers": [1, "a"],
    "tokens has type float, expected whole numbers": [1.0, 2],
}


@having
@pytest.mark.parametrize("message", WRONG_STEPS)
def test_wrong_tokens_are_refused(message, reached):
    _, angles, rows = batch_of(config(), BATCHES["two"])
    with pytest.raises((ValueError, TypeError), match=message):
        Ends(config(), "f32").step(KernelBackend("cpp")).run(WRONG_STEPS[message], angles, rows)
    reached.silu(np.ones(1, np.float32))


@having
def test_a_plan_checks_its_tables(reached):
    ends = Ends(config(), "f32")
    right = ends.embedding, ends.norm, ends.output
    for i, message in enumerate(
        ("embedding has shape", "output has shape|embedding has shape", "output has")
    ):
        wrong = [each[..., :-1].copy() if i == at else each for at, each in enumerate(right)]
        ends.embedding, ends.norm, ends.output = wrong
        with pytest.raises(ValueError, match=f"DecoderPlan: ({message})"):
            ends.step(KernelBackend("cpp"))
    ends.embedding, ends.norm, ends.output = right
    ends.layers = [layer_of(config(width=32), 0)]
    with pytest.raises(
        ValueError, match="layers has a layer of width 32, expected that of the embedding, 64"
    ):
        ends.step(KernelBackend("cpp"))
    reached.silu(np.ones(1, np.float32))


@having
@pytest.mark.parametrize(("sequences", "calls"), ((16, [16]), (17, [16, 1]), (49, [16, 16, 16, 1])))
def test_more_sequences_than_a_call_takes_go_in_a_few(sequences, calls, reached, tmp_path):
    """Op by op, kernels for many rows would round differently."""
    speaking_model.write(tmp_path)
    prompts, tokens = [[3 + i % 9, 5] for i in range(sequences)], [[4 + i % 7] for i in range(sequences)]
    with LayerWiseInferenceEngine(tmp_path, backend="cpp", cache_dtype="f32") as engine:
        caches, made, step = [engine.new_cache() for _ in prompts], [], engine.model.step
        engine.forward(prompts, caches)
        run = step._run
        step._run = lambda plan, ids, *rest: (made.append(np.size(ids)), run(plan, ids, *rest))[1]
        found = engine.forward(tokens, caches)
        assert made == calls and {cache.length for cache in caches} == {3}
        for logits, prompt, token in zip(found, prompts, tokens, strict=True):
            alone = engine.forward(prompt + token)
            assert np.abs(logits - alone).max() < 1e-4 * np.ptp(alone)
    reached.silu(np.ones(1, np.float32))
