"""Sampling that a model's files recommend."""

import json

import gguf
import pytest

from airllm.engine.recommended_sampling import as_text, recommended_by, recommended_sampling
from airllm.files import ModelFileError, open_weights
from airllm.layer_engine import LayerWiseInferenceEngine


@pytest.mark.parametrize(
    ("file", "expected"),
    (
        ({"eos_token_id": 2}, {}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, {"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        ({"do_sample": True, "top_k": -1, "min_p": None}, {"temperature": 1.0, "top_k": 0}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
        (
            {"do_sample": True, "temperature": 0.7, "repetition_penalty": 1.05},
            {"temperature": 0.7, "repetition_penalty": 1.05},
        ),
    ),
)
def test_folders(tmp_path, file, expected):
    assert recommended_sampling(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    assert recommended_sampling(tmp_path) == expected


@pytest.mark.parametrize(
    ("file", "message"),
    (
        ({"temperature": -1}, "config.json: key temperature has value -1, expected a number from 0 on"),
        ({"top_p": "much"}, "key top_p has value 'much', expected a number"),
        ({"top_k": 1.5}, "key top_k has value 1.5, expected a whole number"),
        ({"do_sample": "yes"}, "key do_sample has value 'yes', expected true or false"),
    ),
)
def test_values_that_cannot_be(tmp_path, file, message):
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    with pytest.raises(ModelFileError, match=message):
        recommended_sampling(tmp_path)


def test_gguf_files(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_float32("general.sampling.penalty_repeat", 1.25)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = recommended_sampling(path)
    with open_weights(path) as weights:
        assert recommended_by(weights) == found
    assert found == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}
    assert as_text(found) == "temperature 0.5, top-k 20, repetition-penalty 1.25"


def test_python_stays_greedy_unless_told(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"temperature": 1.5}))
    with LayerWiseInferenceEngine(folder) as plain, LayerWiseInferenceEngine(tmp_path / "model") as engine:
        assert engine.recommended_sampling == {"temperature": 1.5}
        assert engine.generate("the", 9) == plain.generate("the", 9)
        drawn = engine.generate("the", 9, seed=3, **engine.recommended_sampling)
        assert drawn == plain.generate("the", 9, seed=3, temperature=1.5) != plain.generate("the", 9)
