"""mmlu: a question with lettered choices; the letter by its log-probability, or as written."""

import re
from string import ascii_uppercase

from bramley.bench.eval.tasks.contract import Answer, Asked, Item, Setting, Task, Verdict

TOP = 20  # alternatives: as many as a request may ask for
MAX_TOKENS = 32
END = "Answer:"  # of a prompt in plain text
_SAID = re.compile(r"\banswer\b\W*(?:\bis\b)?\W*\(?\b([A-J])\b(?!['\u2019])", re.IGNORECASE)
_LEADING = re.compile(r"\W*([A-J])(?:\W*$|[).:,]|\s*\n)")
_BRACKETED = re.compile(r"\(([A-J])\)|\*\*([A-J])\b")


class Question(Item, frozen=True, kw_only=True):
    """One question.

    Attributes:
        answer: place of the right choice, from 0.
    """

    question: str
    choices: list[str]
    answer: int
    subject: str = ""

    def __post_init__(self) -> None:
        if not 2 <= len(self.choices) <= 10:
            raise ValueError("choices: two to ten")
        if not 0 <= self.answer < len(self.choices):
            raise ValueError("answer: is the place of no choice")


def ask(item: Question, setting: Setting) -> Asked:
    """Ask for the letter of the right choice.

    Returns:
        Plain text up to the letter where log-probabilities decide, or else a question.
    """
    about = f" about {item.subject}" if item.subject else ""
    pairs = zip(ascii_uppercase, item.choices, strict=False)
    choices = "\n".join(f"{letter}. {choice}" for letter, choice in pairs)
    body = f"{item.question}\n{choices}\n"
    if setting.letters:
        text = f"The following is a multiple choice question{about}.\n\n{body}{END}"
        return Asked(text=text + setting.gap, style="raw", max_tokens=1, top=TOP)
    if setting.style == "raw":
        text = f"The following is a multiple choice question{about}.\n\n{body}{END}"
        tokens = setting.limit(MAX_TOKENS)
        return Asked(text=text, style="raw", max_tokens=tokens, stop=("\n",))
    text = f"{body}\nAnswer with the letter of the right choice alone."
    return Asked(text=text, style="chat", max_tokens=setting.limit(MAX_TOKENS))


def judge(item: Question, answer: Answer, setting: Setting) -> Verdict:
    """Compare the letter with the right one."""
    letters = ascii_uppercase[: len(item.choices)]
    if setting.letters:
        found, why = _likeliest(letters, answer, setting)
    else:
        found = written_letter(answer.text, letters)
        why = "no letter in the answer"
    right = letters[item.answer]
    if found:
        why = f"{found} is right" if found == right else f"{found} instead of {right}"
    return Verdict(is_right=found == right, found=found, why=why)


def _likeliest(letters: str, answer: Answer, setting: Setting) -> tuple[str, str]:
    known = {letter: answer.first.get(setting.letters[letter]) for letter in letters}
    told = {letter: logprob for letter, logprob in known.items() if logprob is not None}
    if not told:
        return "", f"no letter is among the {TOP} likeliest tokens"
    return max(told, key=lambda letter: (told[letter], -ord(letter))), ""


def written_letter(text: str, letters: str) -> str:
    """Read the letter of a generated answer; empty without one.

    Args:
        text: the answer.
        letters: that there are.

    Returns:
        Of "answer: X" or "the answer is X" the last one, or else a letter at the very start that
        is no word, or else the last one in brackets.
    """
    said = [one.group(1).upper() for one in _SAID.finditer(text)]
    leading = _LEADING.match(text)
    bracketed = [one.group(1) or one.group(2) for one in _BRACKETED.finditer(text)]
    for some in (said[-1:], [leading.group(1)] if leading else [], bracketed[-1:]):
        if some and some[0] in letters:
            return some[0]
    return ""


TASK = Task(name="mmlu", kind=Question, ask=ask, judge=judge)
