"""backend.json and the environment: what counts more, and every error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from backend_json import DOCUMENTED, prefer

from airllm.backends import config, json_file, tuning_file
from airllm.backends.config_schema import Wrong
from airllm.files.weight_file import ModelFileError, parse_json


class Counted(str):
    """A key that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_a_key_that_stands_twice_is_found_in_one_pass(monkeypatch):
    """A header with a hundred thousand names must not take minutes."""
    names = [f"k{i}" for i in range(2000)] + ["k1999"]

    def loads(text: str, object_pairs_hook: Callable) -> object:
        return object_pairs_hook([(Counted(name), 1) for name in names])

    monkeypatch.setattr(json, "loads", loads)
    monkeypatch.setattr(Counted, "compared", 0)
    with pytest.raises(ModelFileError, match="has 'k1999' twice"):
        parse_json(Path("x"), b"")
    with pytest.raises(Wrong, match="has the key 'k1999' twice"):
        json_file.json.loads("", object_pairs_hook=json_file._refuse_repeated)
    assert Counted.compared < 5 * len(names)


ORDER = ["cuda", "opencl", "cpp", "python"]
ORDER_OF_KEYS = ["preferred_backend", "backend_priority", "force_backend"]


# ---- what counts more ----


def test_without_any_file_the_defaults_are_those_of_the_document(places):
    assert config.load() == config.Config("auto", tuple(ORDER), None, "defaults", None)
    assert config.load().as_dict() == {
        "preferred_backend": "auto",
        "backend_priority": ORDER,
        "force_backend": None,
    }


def test_the_shipped_file_is_that_of_the_document():
    """As committed: whoever runs this may have configured the checkout, which is no error."""
    command = ["git", "-C", str(config.CHECKOUT), "show", "HEAD:backend.json"]
    answer = subprocess.run(command, capture_output=True, text=True)
    shipped = answer.stdout if answer.returncode == 0 else (config.CHECKOUT / "backend.json").read_text()
    assert shipped == DOCUMENTED


@pytest.mark.parametrize("strongest", ["AIRLLM_CONFIG", "checkout", "user"])
def test_the_strongest_file_counts_alone(places, monkeypatch, strongest):
    weaker_first = ["user", "checkout", "AIRLLM_CONFIG"]
    for source in weaker_first[: weaker_first.index(strongest)]:
        prefer(places[source], "cuda")
    prefer(places[strongest], "cpp")
    if strongest == "AIRLLM_CONFIG":
        monkeypatch.setenv("AIRLLM_CONFIG", str(places[strongest]))
    loaded = config.load()
    assert (loaded.preferred_backend, loaded.source, loaded.path) == ("cpp", strongest, places[strongest])


def test_an_installed_package_does_not_look_for_a_checkout(places):
    prefer(places["checkout"], "cpp")
    (config.CHECKOUT / "setup.py").unlink()
    assert config.load().source == "defaults"


@pytest.mark.parametrize(
    "value, preferred, priority, force",
    [
        ("cpp", "opencl", ["opencl", "python"], "cpp"),  # a name is strict
        ("numpy", "opencl", ["opencl", "python"], "python"),
        ("cpp,cuda", "auto", ["cpp", "cuda"], None),  # a list is an order to try
        (" cpu , numpy ", "auto", ["cpp", "python"], None),
        ("auto", "auto", ["opencl", "python"], None),
        ("CPU", "opencl", ["opencl", "python"], "cpp"),  # in letters of any case
        ("Cpp,CUDA", "auto", ["cpp", "cuda"], None),
        ("AUTO", "auto", ["opencl", "python"], None),
        ("  ", "opencl", ["opencl", "python"], "cuda"),  # as good as unset
    ],
)
def test_airllm_backend_counts_more_than_the_file(places, monkeypatch, value, preferred, priority, force):
    config.write(
        places["checkout"],
        preferred_backend="opencl",
        backend_priority=["opencl", "python"],
        force_backend="cuda",
    )
    monkeypatch.setenv("AIRLLM_BACKEND", value)
    loaded = config.load()
    assert loaded.as_dict() == dict(zip(config.KEYS, (preferred, priority, force), strict=True))
    assert loaded.source == ("AIRLLM_BACKEND" if value.strip() else "checkout")
    assert loaded.path == places["checkout"]


def test_a_key_that_is_not_there_has_its_default(places):
    prefer(places["checkout"], "cpp")
    assert config.load().backend_priority == tuple(ORDER)


def test_aliases_become_the_names_of_backends(places):
    places["checkout"].write_text('{"preferred_backend": "numpy", "backend_priority": ["openmp", "numpy"]}')
    assert config.load().as_dict()["backend_priority"] == ["cpp", "python"]
    assert config.load().preferred_backend == "python"


def test_names_have_letters_of_any_case(places):
    config.write(places["checkout"], backend_priority=["OpenCL", "NumPy"], force_backend="CPP")
    assert config.load() == config.Config("auto", ("opencl", "python"), "cpp", "checkout", places["checkout"])
    assert config.preference("Auto") == "auto" and config.preference("OpenMP") == "cpp"
    with pytest.raises(config.ConfigError, match="backend_priority has 'CPU' twice"):
        config.write(places["checkout"], backend_priority=["cpp", "CPU"])


@pytest.mark.parametrize("value, device", [(1, "1"), (0, "0"), ("0:1", "0:1"), (" PoCL ", "PoCL")])
def test_the_opencl_device_is_an_index_or_a_name(places, monkeypatch, value, device):
    config.write(places["checkout"], opencl_device=value)
    monkeypatch.setenv("AIRLLM_BACKEND", "opencl")
    assert config.load().own == {"opencl_device": device}
    assert list(config.load().as_dict()) == ORDER_OF_KEYS


def test_a_file_that_names_no_opencl_device_leaves_the_choice_to_opencl(places):
    config.write(places["checkout"])
    assert "opencl_device" not in places["checkout"].read_text()
    assert config.load().own == {}


# ---- the way out of force mode ----


def test_the_remedy_for_force_mode_is_where_it_was_said(places, monkeypatch):
    """In a checkout the documented command; a wheel has no setup.py, so the file and its key."""

    def remedy(source):
        config.write(places[source], force_backend="cuda")
        assert config.load().source == source
        return config.how_to_unforce(config.load())

    assert remedy("user") == f'Remove force mode: set "force_backend" to null in {places["user"]}'
    assert remedy("checkout") == "Remove force mode: python setup.py configure_backend --backend=auto"
    monkeypatch.setenv("AIRLLM_CONFIG", str(places["AIRLLM_CONFIG"]))
    named = remedy("AIRLLM_CONFIG")
    assert named == f'Remove force mode: set "force_backend" to null in {places["AIRLLM_CONFIG"]}'
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda")
    assert config.how_to_unforce(config.load()) == "Remove the environment variable AIRLLM_BACKEND"


# ---- errors ----

DEVICE = 'a device\'s index, "platform:device" or a part of its name'
APPLE = ", mps = mlx, metal = mlx" if sys.platform == "darwin" else ""
KNOWN = f"cuda, rocm, mlx, opencl, webgpu, cpp, python (cpu = cpp, openmp = cpp, numpy = python{APPLE})"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", ":1:1: is not JSON: Expecting value"),
        ('{\n  "preferred_backend": "cpp"\n  "x": 1}', ":3:3: is not JSON: Expecting ',' delimiter"),
        ("[]", ":1: has a list, expected an object with the keys preferred_backend, backend_priority, "),
        ('"cpp"', ':1: has "cpp" (a string), expected an object'),
        (
            '{\n\n"preferred_backend": "cppp"}',
            f":3: preferred_backend has the unknown backend 'cppp', expected one of: auto, {KNOWN}",
        ),
        ('{"preferred_backend": 3}', ":1: preferred_backend has 3 (a number), expected one of: auto, cuda"),
        ('{"preferred_backend": null}', ":1: preferred_backend has null, expected one of: auto, cuda"),
        (
            '{\n"force_backend":\n"auto"}',
            f":3: force_backend has the unknown backend 'auto', expected one of: null, {KNOWN}",
        ),
        ('{"force_backend": true}', ":1: force_backend has a boolean, expected one of: null, cuda"),
        ('{"backend_priority": "cpp"}', ':1: backend_priority has "cpp" (a string), expected a list'),
        ('{"backend_priority": []}', ":1: backend_priority is empty, expected at least one backend"),
        (
            '{"x": {"cpp": [1, "}"]},\n"backend_priority": [\n"cuda",\n"gpu"]}',
            f":4: backend_priority has the unknown backend 'gpu', expected one of: {KNOWN}",
        ),
        (
            '{"backend_priority": ["cpp",\n"cpu"]}',
            ":2: backend_priority has 'cpu' twice, expected each backend once",
        ),
        ('{"backend_priority": ["cpp", {}]}', ":1: backend_priority has an object, expected one of: cuda"),
        (
            '{"a": 1,\n"prefered_backend": "cpp"}',
            ":2: unknown key 'prefered_backend', expected 'preferred_backend'",
        ),
        ('{"x": 1,\n"opencl_device": true}', f":2: opencl_device has a boolean, expected {DEVICE}"),
        ('{"opencl_device": [0]}', f":1: opencl_device has a list, expected {DEVICE}"),
        ('{"opencl_device": null}', f":1: opencl_device has null, expected {DEVICE}"),
        ('{"opencl_device": 0.5}', f":1: opencl_device has 0.5 (a number), expected {DEVICE}"),
        ('{"opencl_device": -1}', f":1: opencl_device has -1 (a number), expected {DEVICE}"),
        ('{"opencl_device":\n" "}', f':2: opencl_device has " " (a string), expected {DEVICE}'),
        (
            '{\n"opencl-device": 0}',
            ":2: unknown key 'opencl-device', expected 'opencl_device'",
        ),
        (
            '{"force_backend": null,\n"force_backend": "cpp"}',
            ":2: has the key 'force_backend' twice, expected it once",
        ),
        ("[" * 100000, ": is nested too deeply"),
        ('{"x": ' + "1" * 5000 + "}", ": is not JSON: Exceeds the limit"),
    ],
)
def test_what_a_file_may_not_say_names_file_line_and_key(places, text, message):
    places["checkout"].write_text(text)
    with pytest.raises(config.ConfigError) as caught:
        config.load()
    assert str(caught.value).startswith(f"{places['checkout']}{message}")


def test_a_file_that_is_not_text_cannot_be_read(places):
    places["checkout"].write_bytes(b'{"a": "\xff"}')
    with pytest.raises(config.ConfigError, match="cannot be read: it is not UTF-8 text"):
        config.load()


def test_a_file_that_cannot_be_opened_says_why(places):
    places["checkout"].mkdir()
    with pytest.raises(config.ConfigError, match=r"backend.json: cannot be read: Is a directory"):
        config.load()


def test_airllm_config_must_name_a_file(places, monkeypatch):
    monkeypatch.setenv("AIRLLM_CONFIG", "/nowhere/backend.json")
    with pytest.raises(
        config.ConfigError, match="AIRLLM_CONFIG=/nowhere/backend.json: there is no such file"
    ):
        config.load()


@pytest.mark.parametrize("value", ["cppp", "cpp,cppp", "cpp,", "auto,cpp", "cpp,cpu"])
def test_airllm_backend_must_name_backends(places, monkeypatch, value):
    monkeypatch.setenv("AIRLLM_BACKEND", value)
    with pytest.raises(config.ConfigError, match=f"^AIRLLM_BACKEND={value}: "):
        config.load()


def test_airllm_backend_does_not_hide_a_broken_file(places, monkeypatch):
    places["checkout"].write_text("{")
    monkeypatch.setenv("AIRLLM_BACKEND", "cpp")
    with pytest.raises(config.ConfigError, match="is not JSON"):
        config.load()


def test_backends_of_other_distributions_are_known(places, monkeypatch, tmp_path):
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[airllm.backends]\nTpu = other_tpu\n")
    with pytest.raises(config.ConfigError, match="unknown backend 'tpu'"):
        config.canonical_name("tpu")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {config.canonical_name(name) for name in ("tpu", "Tpu", "TPU")} == {"Tpu"}
    assert config.known_names() == (*config.BUILT_IN, "Tpu")


# ---- the module itself ----


@pytest.mark.parametrize("platformdirs", (True, False))
def test_a_user_without_a_home(tmp_path, platformdirs):
    """As in containers that run as any number: no HOME, and no entry of that number in passwd."""
    program = f"""
import os, pwd, sys
def nobody(uid):
    raise KeyError(uid)
pwd.getpwuid = nobody
if not {platformdirs}:
    sys.modules["platformdirs"] = None
from airllm import tensor_ops
from airllm.files import smollm2
from airllm.backends import config, tuning_file
assert tensor_ops.get_backend() == "python" and config.user_file() is None
try:
    smollm2.cache_dir()
except smollm2.Unavailable as error:
    assert "AIRLLM_CACHE_DIR may name another folder" in str(error)
config.CHECKOUT = config.Path({str(tmp_path)!r})
assert config.load_file().source == "defaults"
assert tuning_file.tuning_file() is None and tuning_file.load() is None
print(tuning_file.why_no_file())
"""
    left = {"PATH": os.environ["PATH"], "PYTHONPATH": str(config.CHECKOUT), "AIRLLM_BACKEND": "python"}
    answer = subprocess.run([sys.executable, "-c", program], env=left, capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == (
        "this user has no home folder, and AIRLLM_TUNING names no file\n",
        "",
    )


@pytest.mark.parametrize("variable", ("AIRLLM_CONFIG", "AIRLLM_TUNING"))
def test_a_file_in_the_home_of_nobody(monkeypatch, variable):
    monkeypatch.delenv("AIRLLM_TUNING")  # which says `off` for all tests
    monkeypatch.setenv(variable, "~nobody-of-this-name/x.json")
    with pytest.raises(config.ConfigError, match=f"{variable}=~nobody-of-this-name/x.json: "):
        tuning_file.load()


def test_config_needs_only_the_standard_library(tmp_path):
    """-S leaves site-packages out: neither NumPy nor platformdirs is there."""
    program = "from airllm.backends import config as c; print(c.user_file(), c.load().source)"
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(config.CHECKOUT)}
    command = [sys.executable, "-S", "-c", program]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == f"{tmp_path}/airllm/backend.json checkout\n"


def test_the_rule_without_platformdirs_is_that_of_platformdirs(monkeypatch, tmp_path):
    for value in (str(tmp_path), ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        by_platformdirs = config.user_file()
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "platformdirs", None)
            assert config.user_file() == by_platformdirs
