"""Files of requests and of results: what is refused, and what a kill leaves."""

import errno
import json
import os

import pytest
from msgspec import Raw

from airllm.batch.requests_file import BatchFileError, RequestsFile
from airllm.batch.results_file import Response, Result, ResultsFile

URL = "/v1/chat/completions"
LINE = {"custom_id": "a", "method": "POST", "url": URL, "body": {"model": "tiny", "messages": []}}

ANSWERED = '{"response":{"status_code":200},"custom_id":"a"}\n'


def result(id, status=200):
    return Result(f"batch_req_{id}", id, Response(status, "req_1", Raw(b'{"text":"\\n \xe2\x82\xac"}')))


def write(path, *lines):
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
    return path


def test_requests_are_where_their_lines_say(tmp_path):
    path = tmp_path / "in.jsonl"
    bodies = [{"model": name, "text": "€\n" * 9000} for name in ("one", "two", "one")]
    lines = [json.dumps({**LINE, "custom_id": str(i), "body": body}) for i, body in enumerate(bodies)]
    path.write_bytes(b"\xef\xbb\xbf" + f"{lines[0]}\r\n\n  \n{lines[1]}\n{lines[2]}".encode())
    with RequestsFile(path) as file:
        assert [(each.custom_id, each.line) for each in file.requests] == [("0", 1), ("1", 4), ("2", 5)]
        assert [json.loads(file.body(each)) for each in reversed(file.requests)] == bodies[::-1]
        assert file.models == {"one": 1, "two": 4}
        write(path, *({**LINE, "custom_id": "other"},) * 9)
        with pytest.raises(BatchFileError, match=r"in\.jsonl was changed: line 4 is no longer the same"):
            file.body(file.requests[1])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: it is not valid JSON"),
        ("[]", "line 2: it is not as expected: Expected `object`, got `array`"),
        ({**LINE, "custom_id": 3}, "line 2: Invalid value for 'custom_id'"),
        ({**LINE, "custom_id": ""}, "line 2: Invalid value for 'custom_id'"),
        ({"custom_id": "b", "method": "POST", "url": URL}, "Missing required parameter: 'body'"),
        ({**LINE, "custom_id": "b", "more": 1}, "supplied: more"),
        ({**LINE, "custom_id": "b", "method": "GET"}, "method is 'GET', expected 'POST'"),
        ({**LINE, "custom_id": "b", "url": "/tokenize"}, "url is '/tokenize', expected one of /v1/chat/comp"),
        ({**LINE, "custom_id": "b", "body": [1]}, "line 2: The body is not as expected: Expected `object`"),
        ({**LINE, "custom_id": "b", "body": {"stream": True}}, "body.stream is true"),
        (LINE, "line 2: custom_id 'a' is that of line 1 too"),
    ],
)
def test_a_line_that_is_no_request_is_refused_with_its_number(tmp_path, line, said):
    with pytest.raises(BatchFileError) as error:
        RequestsFile(write(tmp_path / "in.jsonl", LINE, line))
    assert said in str(error.value)


def test_many_problems_are_told_at_once(tmp_path):
    with pytest.raises(BatchFileError, match=r"line 1: .*; line 2: .*; line 5: .*; and 4 more$"):
        RequestsFile(write(tmp_path / "in.jsonl", *"{" * 9))
    with pytest.raises(BatchFileError, match="has no requests"):
        RequestsFile(write(tmp_path / "in.jsonl", "", " "))


def test_a_file_that_was_cut_anywhere_goes_on_with_its_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # 900 times it would take seconds
    path = tmp_path / "out.jsonl"
    with ResultsFile(path, "abc") as file:
        file.append([result("a")])
        file.append([result("b", 400), result("c")])
        assert (file.done, file.failed) == (set("abc"), 1)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["response"]["body"]["text"] for line in lines] == ["\n €"] * 3
    for size in range(len(whole) + 1):
        # some file systems had written the size, and not the bytes
        for zeros in (b"", b"\0" * 3)[: 1 + (size % 9 == 0)]:
            path.write_bytes(whole[:size] + zeros)
            with ResultsFile(path, "abc") as file:
                count = whole[:size].count(b"\n")
                assert path.read_bytes() == b"".join(lines[:count])
                assert file.done == set("abc"[:count])
                file.append([result(id) for id in "abc"[count:]])
            assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == list("abc")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notes\n", "line 1 is not a result of a batch"),
        ("notes", "line 1 is not a result of a batch, and has no end"),
        (json.dumps(LINE) + "\n", "line 1 is not a result of a batch: .*`response`"),
        (ANSWERED.replace('"a"', '"z"'), "line 1 has custom_id 'z', which no request has"),
        (ANSWERED * 2, "line 2 has custom_id 'a', as a line before"),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, text, said):
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(BatchFileError, match=said):
        ResultsFile(path, "ab")
    assert path.read_text() == text


def test_one_process_writes_a_file(tmp_path):
    path = tmp_path / "out.jsonl"
    with ResultsFile(path, "a"), pytest.raises(BatchFileError, match="is being written by another process"):
        ResultsFile(path, "a")
    ResultsFile(path, "a").__exit__(None, None, None)


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    write_bytes, room = os.write, [1, 500]

    def fill(file, data):
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(file, data[: room.pop()])

    with ResultsFile(path, "abcdefgh") as file:
        file.append([result("a")])
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fill)
            with pytest.raises(OSError, match="No space left on device: .*out.jsonl"):
                file.append([result(id) for id in "bcdefgh"])
        assert not room and path.read_bytes() == before and file.done == {"a"}
        file.append([result("b")])
    assert path.read_bytes().startswith(before) and path.read_bytes().count(b"\n") == 2
