"""The examples of docs/http.md do what the page says."""

import asyncio
import json
import re
from pathlib import Path

from support.gateway import site

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
EXAMPLES = re.findall(r"```sh\n(curl .*?)```", PAGE, re.DOTALL)


async def output_of(command: str) -> str:
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, command
    return told.decode()


async def test_the_page_s_examples_are_answered() -> None:
    async with site() as one:
        outputs = [
            await output_of(
                example.replace("$HTTP", f"http://{one.address}").replace("NAME", "fake")
            )
            for example in EXAMPLES
        ]
    chat, stream, schema, completion, response, message, models = outputs
    assert json.loads(chat)["choices"][0]["message"]["content"] == "0 1 2 3 4 5 6 7 "
    assert stream.endswith("data: [DONE]\n\n")
    assert '"completion_tokens":8' in stream
    assert json.loads(schema)["choices"][0]["finish_reason"] == "length"
    assert json.loads(completion)["choices"][0]["text"] == "0 1 2 3 4 5 6 7 "
    (item,) = json.loads(response)["output"]
    assert item["content"][0]["text"] == "0 1 2 3 4 5 6 7 "
    assert json.loads(message)["content"] == [{"type": "text", "text": "0 1 2 3 4 5 6 7 "}]
    assert [model["id"] for model in json.loads(models)["data"]] == ["fake"]
