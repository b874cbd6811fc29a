"""Options that commands share: how a text is generated, and how a model is opened."""

from __future__ import annotations

import argparse

from airllm.backends.declaration import shipped


def add_generation(parser: argparse.ArgumentParser, temperature: str) -> None:
    """The options of a command that writes texts, and those of the engine. `temperature`: what the default is
    where the model's files recommend none.
    """
    text = parser.add_argument_group("the text")
    text.add_argument(
        "-n",
        "--max-new-tokens",
        "--max-tokens",  # as OpenAI's clients call it
        type=int,
        default=512,
        metavar="N",
        help="maximum number of tokens to generate; default: %(default)s",
    )
    text.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 always takes the most likely token, 1 samples the model's distribution; default: what the "
        f"model's files recommend (airllm info MODEL), else {temperature}",
    )
    text.add_argument("--top-k", type=int, metavar="K", help="sample only the K most likely tokens")
    text.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample only the most likely tokens up to this total probability",
    )
    text.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="sample only tokens at least P times as likely as the most likely",
    )
    text.add_argument("--repetition-penalty", type=float, metavar="X", help="above 1: reduces repetition")
    text.add_argument(
        "--presence-penalty",
        type=float,
        metavar="X",
        help="from -2 to 2: above 0, a token that was generated is less likely to come again",
    )
    text.add_argument(
        "--frequency-penalty",
        type=float,
        metavar="X",
        help="the same, once for each time that it was generated",
    )
    text.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    text.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop before this text; repeatable"
    )
    text.add_argument("-q", "--quiet", action="store_true", help="print no speed and no progress")
    drafts = add_engine(parser).add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft-model",
        metavar="MODEL",
        help="a smaller model with the same tokenizer; it guesses tokens, which the model verifies together",
    )
    drafts.add_argument(
        "--no-speculation",
        dest="speculative",
        action="store_const",
        const=False,
        help="guess no tokens from repetitions; guesses never change the text",
    )


def add_engine(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options of a command that opens a model."""
    engine = parser.add_argument_group("the engine")
    threaded = ", ".join(name for name, own in shipped().items() if own.threads)
    engine.add_argument("--backend", metavar="NAME", help=f"{', '.join(shipped())} or auto (the default)")
    engine.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help=f"threads of the backend {threaded}; default: AIRLLM_NUM_THREADS, or all CPUs",
    )
    engine.add_argument("--compute", choices=("stored", "float32"), help="float32: exact, but slow")
    engine.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="maximum tokens of prompt and text; default: the model's, at most 8192",
    )
    engine.add_argument(
        "--cache-dtype",
        type=str.lower,
        choices=("f16", "f32", "q8_0"),
        help="dtype of keys and values; default: f16",
    )
    engine.add_argument("--max-memory", metavar="SIZE", help="maximum memory of the model, such as 512MB")
    engine.add_argument(
        "--adapter",
        dest="adapter",
        action="append",
        metavar="PATH[:SCALE]",
        help="a LoRA adapter, a GGUF file or a folder of PEFT, and what it is multiplied by; repeatable",
    )
    engine.add_argument(
        "--fallback-backend",
        dest="fallback_backends",
        action="append",
        metavar="NAME",
        help="a backend that goes on with the text if a device fails; repeatable",
    )
    engine.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="maximum memory on the device of a backend that keeps models there, such as 4GB; default: what "
        "is free",
    )
    engine.add_argument(
        "--gpu-layers",
        type=int,
        metavar="N",
        help="how many layers stay on the device; default: as many as fit",
    )
    engine.add_argument(
        "--offload",
        choices=("auto", "split", "stream"),
        help="the other layers run on the processor (split), or are uploaded in each pass (stream); default: "
        "split with --gpu-layers, else what is faster, as measured",
    )
    return engine
