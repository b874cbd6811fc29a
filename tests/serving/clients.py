"""Other clients against a server, by hand: litellm, langchain-openai, instructor, pydantic-ai.

    airllm serve smollm2 --port 8080
    pip install litellm langchain-openai instructor "pydantic-ai-slim[openai]"
    python tests/serving/clients.py http://127.0.0.1:8080/v1

Each asks for a text, a stream, and an object of a schema or a tool's call, as far as it can.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any

import openai
from pydantic import BaseModel

MODEL, KEY = "smollm2", "none"
MESSAGES: list[Any] = [{"role": "user", "content": "Name a city and its country."}]


class City(BaseModel):
    name: str
    country: str


def try_litellm(url: str) -> str:
    import litellm

    asked = {
        "model": f"openai/{MODEL}",
        "api_base": url,
        "api_key": KEY,
        "messages": MESSAGES,
        "max_tokens": 60,
    }
    text = litellm.completion(**asked).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    made = litellm.completion(**asked, response_format=City).choices[0].message.content
    assert text and "".join(pieces)
    return repr(City.model_validate_json(made))


def try_langchain(url: str) -> str:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, max_tokens=60, seed=1)
    assert model.invoke("Hello").content
    assert "".join(chunk.content for chunk in model.stream("Hello"))
    assert model.bind_tools([City], tool_choice="City").invoke("A city").tool_calls[0]["name"] == "City"
    return repr(model.with_structured_output(City).invoke("A city"))


def try_instructor(url: str) -> str:
    import instructor

    found = []
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key=KEY), mode=mode)
        asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "max_retries": 0}
        found.append(client.chat.completions.create(response_model=City, **asked))
    return repr(found)


def try_pydantic_ai(url: str) -> str:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    found = []
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL, provider=OpenAIProvider(base_url=url, api_key=KEY))
        settings: Any = {"max_tokens": 200}
        for output in (City, NativeOutput(City)):
            agent: Any = Agent(model, output_type=output, model_settings=settings)
            found.append(asyncio.run(agent.run("A city")).output)
        plain: Any = Agent(model, model_settings=settings)
        found.append(len(asyncio.run(plain.run("Hello")).output))
    return repr(found)


def main() -> int:
    failed = 0
    for call in (try_litellm, try_langchain, try_instructor, try_pydantic_ai):
        try:
            print(f"{call.__name__[4:]}: {call(sys.argv[1])}")
        except Exception:
            failed += 1
            print(f"{call.__name__[4:]}: FAILED")
            traceback.print_exc()
    return failed


if __name__ == "__main__":
    sys.exit(main())
