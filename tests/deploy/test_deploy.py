"""The files of `deploy/`: what they start is a command that exists, and nginx does what the page says."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import checkouts
import documents
import httpx
import pytest
import serving
import yaml
from environment import REQUIRED

from airllm.cli.argument_parser import parse_arguments

DEPLOY = checkouts.ROOT / "deploy"
PORTS = "8081", "8082"


def read(name):
    return (DEPLOY / name).read_text()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return serving.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def two(model):
    """Two servers of one model."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving.serve(model)) for _ in PORTS]


# ------------------------------------------------------------------------------------------ Docker, systemd


def test_the_image_runs_a_command_that_exists(monkeypatch):
    lines = dict(re.findall(r"^(ENTRYPOINT|CMD|STOPSIGNAL) (.*)", read("Dockerfile"), re.M))
    name, *arguments = json.loads(lines["ENTRYPOINT"]) + json.loads(lines["CMD"])
    given = parse_arguments(arguments)
    assert (name, given.command, given.host, given.port) == ("airllm", "serve", "0.0.0.0", 8080)
    assert "EXPOSE 8080" in read("Dockerfile") and lines["STOPSIGNAL"] == "SIGTERM"
    extras = re.search(r'pip install .*"\.\[(.*)\]"', read("Dockerfile"))[1].split(",")
    project = (checkouts.ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)


def test_the_health_check_of_the_image(model):
    command = json.loads(re.search(r"HEALTHCHECK.*\\\n *CMD (.*)", read("Dockerfile"))[1])

    def check(port):
        code = command[2].replace("127.0.0.1:8080", f"127.0.0.1:{port}")
        return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode

    with serving.serve(model) as server:
        port = server.address.rpartition(":")[2]
        assert check(port) == 0
        server.service.thread.stop(5)  # the engine has ended
        assert check(port) == 1
    assert check(port) == 1


def test_the_unit_starts_a_command_that_exists():
    (command,) = re.findall("^ExecStart=(.*)", read("airllm@.service"), re.M)
    values = {"%i": "8081", "${AIRLLM_MODEL}": "model.gguf", "${CREDENTIALS_DIRECTORY}": "/run/c"}
    for name, value in values.items():
        command = command.replace(name, value)
    program, *arguments = shlex.split(command)
    given = parse_arguments(arguments)
    assert (given.command, given.model, given.port) == ("serve", "model.gguf", 8081)
    assert given.api_key_file == "/run/c/api-keys" and program.endswith("/bin/airllm")
    seconds = int(re.search("^TimeoutStopSec=(.*)", read("airllm@.service"), re.M)[1])
    assert seconds > given.drain_timeout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / "airllm@8081.service"
    unit.write_text(read("airllm@.service").replace("/opt/airllm/bin/airllm", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    about = [line for line in done.stderr.splitlines() if "airllm@" in line]
    assert done.returncode == 0 and not about, done.stderr


def test_the_examples_agree_on_ports_and_times():
    proxy, lite = read("nginx.conf"), yaml.safe_load(read("litellm.yaml"))
    assert tuple(re.findall(r"server 127\.0\.0\.1:(\d+)", proxy)) == PORTS
    bases = [each["litellm_params"]["api_base"] for each in lite["model_list"]]
    assert bases == [f"http://127.0.0.1:{port}/v1" for port in PORTS]
    limit = parse_arguments(["serve", "model"]).request_timeout
    assert int(re.search(r"proxy_read_timeout (\d+)s", proxy)[1]) > limit
    assert lite["router_settings"]["timeout"] > limit
    assert all(f"airllm@{port}" in read("airllm@.service") for port in PORTS)


# ------------------------------------------------------------------------------------------ nginx


@pytest.fixture
def nginx(two, tmp_path):
    """The address of an nginx with the example's configuration, before the two servers."""
    if not shutil.which("nginx"):
        assert "nginx" not in REQUIRED, "AIRLLM_TEST_REQUIRE names nginx: it is missing"
        pytest.skip("no nginx: apt-get install nginx")
    text = read("nginx.conf")
    for port, server in zip(PORTS, two, strict=True):
        text = text.replace(f"127.0.0.1:{port}", server.address.removeprefix("http://"))
    with serving.socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    (tmp_path / "airllm.conf").write_text(text.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {folders} include {tmp_path}/airllm.conf; }}"
    )
    command = ["nginx", "-p", str(tmp_path), "-e", f"{tmp_path}/error.log", "-c", f"{tmp_path}/nginx.conf"]
    done = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert done.returncode == 0 and "warn" not in done.stderr, done.stderr
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    address = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(address)
                break
        yield address
    finally:
        process.terminate()
        process.wait()


def ask(address, prompt="in", **more):
    headers = more.pop("headers", {})
    body = {"prompt": prompt, "max_tokens": 30, "temperature": 0, **more}
    return httpx.post(f"{address}/v1/completions", json=body, headers=headers, timeout=20)


def answered(server):
    """How many sequences a server has ended."""
    return sum(server.service.thread.load.counters.ended.values())


def test_a_session_stays_with_its_server(nginx, two):
    for session in range(20):  # which servers they come to is chance
        before = [answered(server) for server in two]
        for _ in range(2):
            assert ask(nginx, headers={"X-Session-Id": f"session {session}"}).status_code == 200
        more = [answered(server) - count for server, count in zip(two, before, strict=True)]
        assert sorted(more) == [0, 2], session
    assert all(answered(server) for server in two)  # and sessions are shared out


def test_a_stream_comes_as_it_grows_and_metrics_stay_here(nginx, two):
    for server in two:
        server.scheduler.pause = 0.01
    body = {"prompt": "in", "max_tokens": 1000, "temperature": 0, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{nginx}/v1/completions", json=body, timeout=20) as stream:
        next(stream.iter_bytes())
        assert any(server.service.thread.load.running for server in two)  # the rest is not computed yet
    assert httpx.get(f"{nginx}/metrics").status_code == 404
    assert httpx.get(f"{nginx}/ready").status_code == 200


def test_the_other_server_answers_for_one_that_has_gone(nginx, two):
    with ThreadPoolExecutor(8) as pool:

        def ask_all():
            given = [pool.submit(ask, nginx, headers={"X-Session-Id": str(i)}) for i in range(24)]
            return [each.result().status_code for each in given]

        assert ask_all() == [200] * 24
        count = answered(two[0])
        two[0].service.is_draining = True  # as after SIGTERM
        two[0].service.abort()
        two[0].service.thread.stop(5)
        assert ask_all() == [200] * 24
        assert answered(two[0]) == count


# ------------------------------------------------------------------------------------------ the page


def test_the_page_names_files_that_exist_and_its_examples_are_python():
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", read("README.md"))
    assert {"Dockerfile", "nginx.conf"} <= set(targets)
    assert all((DEPLOY / target).is_file() for target in targets), targets
    found = documents.blocks("deploy/README.md", "python")
    assert found
    for needs, text in found:
        compile(text, f"deploy/README.md, needs {needs}", "exec")
