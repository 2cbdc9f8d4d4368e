"""Instructions whose following a program can check: a small pure function each.

Every function takes the answer and the instruction's keywords, and says what is wrong with the
answer; nothing if it follows the instruction. ``CHECKS`` names them as ifeval's files do.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[str, Mapping[str, Any]], str]

_WORD = re.compile(r"[^\W_]+(?:['\u2019\-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019)\]]*(?=\s|$)")
_BULLET = re.compile(r"^\s*[*\-•]\s+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*\*[^*\n]+\*\*|(?<!\*)\*[^*\s][^*\n]*\*(?!\*)")
_TITLE = re.compile(r"<<[^\n<>]*\w[^\n<>]*>>")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_QUOTES = "\"'\u201d\u2019 \n"
_DIVIDER = re.compile(r"^\s*\*{3}\s*$", re.MULTILINE)


def words(text: str) -> list[str]:
    """Split a text into words; "don't" and "well-known" are one each."""
    return _WORD.findall(text)


def sentences(text: str) -> int:
    """Count sentences: what ends in a mark, and a rest that does not."""
    ends = list(_SENTENCE_END.finditer(text))
    rest = text[ends[-1].end() :] if ends else text
    return len(ends) + bool(words(rest))


def paragraphs(text: str) -> list[str]:
    """Split at lines of three stars, or at empty lines where there are none."""
    cut = _DIVIDER if _DIVIDER.search(text) else re.compile(r"\n\s*\n")
    return [part.strip() for part in cut.split(text) if part.strip()]


def _counted(what: str, count: int, keywords: Mapping[str, Any], number: str) -> str:
    """Compare a count: "at least" unless "relation" is "less than", as the files put it."""
    bound = int(keywords[number])
    relation = keywords.get("relation") or keywords.get("let_relation") or "at least"
    relation = keywords.get("capital_relation") or relation
    if relation == "less than":
        return "" if count < bound else f"{count} {what}, not fewer than {bound}"
    if relation == "at least":
        return "" if count >= bound else f"{count} {what}, not at least {bound}"
    return f"the item's relation {relation!r} is unknown"


def _number_words(text: str, keywords: Mapping[str, Any]) -> str:
    return _counted("words", len(words(text)), keywords, "num_words")


def _number_sentences(text: str, keywords: Mapping[str, Any]) -> str:
    return _counted("sentences", sentences(text), keywords, "num_sentences")


def _number_paragraphs(text: str, keywords: Mapping[str, Any]) -> str:
    found, wanted = len(paragraphs(text)), int(keywords["num_paragraphs"])
    return "" if found == wanted else f"{found} paragraphs instead of {wanted}"


def _first_word(text: str, keywords: Mapping[str, Any]) -> str:
    parts, place = paragraphs(text), int(keywords["nth_paragraph"])
    if len(parts) != int(keywords["num_paragraphs"]):
        return f"{len(parts)} paragraphs instead of {keywords['num_paragraphs']}"
    found = (words(parts[place - 1]) or [""])[0]
    wanted = str(keywords["first_word"])
    if found.casefold() == wanted.casefold():
        return ""
    return f"paragraph {place} begins with {found!r} instead of {wanted!r}"


def _occurrences(text: str, keyword: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(keyword)}(?!\w)", text, re.IGNORECASE))


def _existence(text: str, keywords: Mapping[str, Any]) -> str:
    missing = [each for each in keywords["keywords"] if not _occurrences(text, each)]
    return f"lacks {', '.join(missing)}" if missing else ""


def _forbidden(text: str, keywords: Mapping[str, Any]) -> str:
    said = [each for each in keywords["forbidden_words"] if _occurrences(text, each)]
    return f"has {', '.join(said)}" if said else ""


def _frequency(text: str, keywords: Mapping[str, Any]) -> str:
    keyword = str(keywords["keyword"])
    return _counted(f"times {keyword!r}", _occurrences(text, keyword), keywords, "frequency")


def _letters(text: str, keywords: Mapping[str, Any]) -> str:
    letter = str(keywords["letter"]).lower()
    found = text.lower().count(letter)
    return _counted(f"times {letter!r}", found, keywords, "let_frequency")


def _bullets(text: str, keywords: Mapping[str, Any]) -> str:
    found, wanted = len(_BULLET.findall(text)), int(keywords["num_bullets"])
    return "" if found == wanted else f"{found} bullets instead of {wanted}"


def _highlights(text: str, keywords: Mapping[str, Any]) -> str:
    return _counted("highlights", len(_HIGHLIGHT.findall(text)), keywords, "num_highlights")


def _sections(text: str, keywords: Mapping[str, Any]) -> str:
    mark = re.escape(str(keywords["section_spliter"]))
    found = len(re.findall(rf"^\W*{mark}\s+\S+", text, re.MULTILINE))
    return _counted("sections", found, keywords, "num_sections")


def _json(text: str, _: Mapping[str, Any]) -> str:
    fenced = _FENCE.match(text.strip())
    try:
        json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        return "is not JSON and nothing else"
    return ""


def _title(text: str, _: Mapping[str, Any]) -> str:
    return "" if _TITLE.search(text) else "has no <<title>>"


def _one_of(text: str, keywords: Mapping[str, Any]) -> str:
    options: list[str] = keywords.get("options") or [
        "My answer is yes.",
        "My answer is no.",
        "My answer is maybe.",
    ]
    return "" if any(each in text for each in options) else "is none of the answers allowed"


def _placeholders(text: str, keywords: Mapping[str, Any]) -> str:
    found = len(_PLACEHOLDER.findall(text))
    return _counted("placeholders", found, keywords, "num_placeholders")


def _postscript(text: str, keywords: Mapping[str, Any]) -> str:
    mark = re.escape(str(keywords["postscript_marker"]))
    found = re.search(rf"^\W*{mark}\W*\w", text, re.IGNORECASE | re.MULTILINE)
    return "" if found else "has no postscript"


def _upper(text: str, _: Mapping[str, Any]) -> str:
    if not any(map(str.isalpha, text)):
        return "has no letters"
    return "" if text == text.upper() else "has small letters"


def _lower(text: str, _: Mapping[str, Any]) -> str:
    if not any(map(str.isalpha, text)):
        return "has no letters"
    return "" if text == text.lower() else "has capital letters"


def _capital_words(text: str, keywords: Mapping[str, Any]) -> str:
    found = sum(word.isupper() for word in words(text))
    return _counted("words in capitals", found, keywords, "capital_frequency")


def _no_comma(text: str, _: Mapping[str, Any]) -> str:
    return "has a comma" if re.search("[,\u060c\uff0c\u3001]", text) else ""


def _end(text: str, keywords: Mapping[str, Any]) -> str:
    wanted = str(keywords["end_phrase"]).strip().casefold()
    found = text.strip().strip(_QUOTES).casefold()
    return "" if found.endswith(wanted.strip(_QUOTES)) else "ends otherwise"


def _quoted(text: str, _: Mapping[str, Any]) -> str:
    bare = text.strip()
    pairs = {('"', '"'), ("“", "”")}
    is_quoted = len(bare) > 2 and (bare[0], bare[-1]) in pairs
    return "" if is_quoted else "is not within double quotation marks"


def _two(text: str, _: Mapping[str, Any]) -> str:
    parts = [part.strip() for part in text.split("******") if part.strip()]
    if len(parts) != 2:
        return f"{len(parts)} answers instead of 2"
    return "both answers are the same" if parts[0] == parts[1] else ""


def _repeat(text: str, keywords: Mapping[str, Any]) -> str:
    wanted = str(keywords["prompt_to_repeat"]).strip().casefold()
    return "" if text.strip().casefold().startswith(wanted) else "does not repeat the request"


CHECKS: dict[str, Check] = {
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _upper,
    "change_case:english_lowercase": _lower,
    "combination:repeat_prompt": _repeat,
    "combination:two_responses": _two,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:constrained_response": _one_of,
    "detectable_format:json_format": _json,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:title": _title,
    "keywords:existence": _existence,
    "keywords:forbidden_words": _forbidden,
    "keywords:frequency": _frequency,
    "keywords:letter_frequency": _letters,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:number_sentences": _number_sentences,
    "length_constraints:number_words": _number_words,
    "punctuation:no_comma": _no_comma,
    "startend:end_checker": _end,
    "startend:quotation": _quoted,
}

# What each needs to be checked at all.
KEYWORDS: dict[str, tuple[str, ...]] = {
    "change_case:capital_word_frequency": ("capital_frequency",),
    "combination:repeat_prompt": ("prompt_to_repeat",),
    "detectable_content:number_placeholders": ("num_placeholders",),
    "detectable_content:postscript": ("postscript_marker",),
    "detectable_format:multiple_sections": ("section_spliter", "num_sections"),
    "detectable_format:number_bullet_lists": ("num_bullets",),
    "detectable_format:number_highlighted_sections": ("num_highlights",),
    "keywords:existence": ("keywords",),
    "keywords:forbidden_words": ("forbidden_words",),
    "keywords:frequency": ("keyword", "frequency"),
    "keywords:letter_frequency": ("letter", "let_frequency"),
    "length_constraints:nth_paragraph_first_word": (
        "num_paragraphs",
        "nth_paragraph",
        "first_word",
    ),
    "length_constraints:number_paragraphs": ("num_paragraphs",),
    "length_constraints:number_sentences": ("num_sentences",),
    "length_constraints:number_words": ("num_words",),
    "startend:end_checker": ("end_phrase",),
}
