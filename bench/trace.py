"""What an agent is told, turn by turn: tools and rules at first, then questions and results.

The same words each time, as many as a model's own tokenizer needs for the lengths asked for.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator

from bramley.client.requests import Message

Count = Callable[[str], int]  # tokens of a text

# As an agent's tools and rules have; and what follows is within a context of 8,192.
SYSTEM_TOKENS = 4_200
RESULT_TOKENS = (40, 160)
QUESTION_EVERY = 4
RULES = """You are an agent that looks after a repository and the machines it runs on.
Read what the tools return, and say in a few words what to do next. Call one tool at a time.
Look before you change anything, and never remove what you did not make. When a tool fails, read
its message, and try another way before you ask. Answer in plain words, without lists.
You have these tools, one a line:
"""
ACTIONS = {
    "list": "List {things}, the newest first, with their names, sizes and times.",
    "read": "Return one of the {things} as text, from a line on and up to a limit.",
    "search": "Find the {things} in which a pattern occurs, and the lines around it.",
    "compare": "Tell how two of the {things} differ, a line for each difference.",
    "change": "Replace a part of one of the {things}, if it still reads as expected.",
    "remove": "Remove one of the {things} for good. Ask before you use this.",
    "watch": "Wait until one of the {things} changes, or until the time is over.",
    "count": "Count {things} by a field, the most frequent value first.",
}
THINGS = (
    *("files", "branches", "commits", "builds", "logs", "tests", "servers", "packages", "issues"),
    *("settings", "queues", "tables", "backups", "certificates", "alerts", "reports"),
)
PARAMETERS = {
    "name": ("string", "Which one, as it was listed."),
    "pattern": ("string", "A regular expression, matched without regard to case."),
    "since": ("string", "Only what is newer: a date, or an age such as 3h or 2d."),
    "limit": ("integer", "At most so many lines of answer; 50 without it."),
    "offset": ("integer", "Skip so many lines first."),
    "folder": ("string", "Look in here alone, and in what is below it."),
    "timeout_s": ("number", "Give up after so many seconds."),
    "is_exact": ("boolean", "Whether upper and lower case differ."),
}
QUESTIONS = (
    "Find out why the nightly build fails, and tell me what has to be changed.",
    "Go on. Which of these files did you not look into yet?",
    "That is not what I meant. Look at the newest log again, please.",
    "What do we know by now? Give me the three most important facts.",
)
WORDS = (
    *("build", "cache", "worker", "branch", "commit", "server", "socket", "thread", "buffer"),
    *("parser", "token", "timeout", "index", "folder", "module", "driver", "packet", "signal"),
)


def system(count: Count) -> Message:
    """Write the rules, and as many tools as fill ``SYSTEM_TOKENS``."""
    text = RULES
    for tool in tools():
        if count(text) >= SYSTEM_TOKENS:
            break
        text += f"{tool}\n"
    return {"role": "system", "content": text}


def tools() -> Iterator[str]:
    """Describe tools, each as an object on one line."""
    draw = random.Random(0)  # noqa: S311  the same each time
    for things, (action, what) in itertools.product(THINGS, ACTIONS.items()):
        chosen = draw.sample(sorted(PARAMETERS), 3)
        properties = {
            name: {"type": PARAMETERS[name][0], "description": PARAMETERS[name][1]}
            for name in chosen
        }
        schema = {"type": "object", "properties": properties, "required": chosen[:1]}
        tool = {
            "name": f"{action}_{things}",
            "description": what.format(things=things),
            "parameters": schema,
        }
        yield json.dumps(tool)


def message(number: int, count: Count) -> Message:
    """Write what the agent is told in a turn: a question, or what a tool has returned."""
    if number % QUESTION_EVERY == 0:
        return {"role": "user", "content": QUESTIONS[number // QUESTION_EVERY % len(QUESTIONS)]}
    draw = random.Random(number)  # noqa: S311  the same each time
    tokens, text = draw.randint(*RESULT_TOKENS), f"exit code {number % 3}\n"
    while count(text) < tokens:
        words = "_".join(draw.sample(WORDS, 2))
        text += f"{words}.py:{draw.randrange(900)}: {draw.choice(WORDS)} {draw.random():.4f} s\n"
    return {"role": "tool", "content": text}
