"""A conversation that is longer than its context: the oldest turns go, one turn at least stays."""

import pytest

from airllm.text.turns import drop_oldest_turns, room_for_answer


def messages_of(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": str(i)} for i, role in enumerate(roles)]


def keep_messages(messages: list[dict[str, str]], most: int, spare: int = 0) -> list[int]:
    """Which messages stay, where each is ten tokens."""
    return [
        int(each["content"]) for each in drop_oldest_turns(messages, lambda some: 10 * len(some), most, spare)
    ]


TALK = ("user", "assistant") * 3 + ("user",)


@pytest.mark.parametrize(
    ("roles", "most", "expected"),
    (
        (TALK, 70, [0, 1, 2, 3, 4, 5, 6]),
        (TALK, 69, [2, 3, 4, 5, 6]),
        (TALK, 50, [2, 3, 4, 5, 6]),
        (TALK, 30, [4, 5, 6]),
        (TALK, 29, [6]),
        (TALK, 1, [6]),
        (("system", *TALK), 79, [0, 3, 4, 5, 6, 7]),
        (("system", *TALK), 1, [0, 7]),
        (("system", "developer", *TALK), 50, [0, 1, 6, 7, 8]),
        (("user", "assistant", "tool", "assistant", "user"), 49, [4]),
        (("assistant", *TALK), 79, [3, 4, 5, 6, 7]),
        (("user",), 1, [0]),
        (("system",), 1, [0]),
        ((), 0, []),
    ),
)
def test_the_oldest_turns_go_first_and_the_system_prompt_never(roles, most, expected):
    assert keep_messages(messages_of(*roles), most) == expected


def test_once_there_is_no_room_some_is_made_for_what_comes():
    talk = messages_of(*TALK)
    assert keep_messages(talk, 70, spare=40) == [0, 1, 2, 3, 4, 5, 6]
    assert keep_messages(talk, 69, spare=40) == [6]
    assert keep_messages(talk, 69, spare=39) == [4, 5, 6]


def test_room_for_the_answer_is_what_is_asked_for_up_to_a_quarter():
    assert [room_for_answer(1000, most) for most in (10, 250, 512, None)] == [10, 250, 250, 250]
