"""How many tokens a prompt has, in each of the forms in which the APIs take one.

Contents may be strings, parts, nothing at all; prompts may be texts, token ids, or lists of either. What is not
understood counts nothing: an estimate never refuses what an engine might take.
"""

from __future__ import annotations

from array import array
from typing import Any

from policies.tokens import (
    IMAGE_TOKENS,
    TEMPLATE_TOKENS_BASE,
    TEMPLATE_TOKENS_PER_MESSAGE,
    LongTexts,
    estimate_schema,
    estimate_text,
    estimate_texts,
)

AUDIO_BYTES_PER_TOKEN = 320
"""Of compressed speech: an encoder makes 50 tokens a second, and 16 kB/s is a usual rate."""

AUDIO_TOKENS_MAX = 1500
"""Encoder tokens of the 30 s window that transcription models take at a time."""

_IMAGES = frozenset({"image", "image_url", "input_image", "image_pil", "image_embeds"})
_SOUNDS = frozenset({"audio_url", "input_audio", "audio", "video_url", "video"})


def content_tokens(content: object, texts: list[str], depth: int = 0) -> int:
    """Collect the text of a message's content into `texts`; the tokens of its images and sounds.

    Contents are a string, nothing, or a list of parts; Anthropic's tool results hold such a content themselves.
    """
    if type(content) is str:
        texts.append(content)
        return 0
    if type(content) is not list:
        return 0
    media = 0
    for part in content:
        if type(part) is str:
            texts.append(part)
        elif type(part) is dict:
            text = part.get("text")
            if type(text) is str:
                texts.append(text)
                continue
            kind = part.get("type")
            if type(kind) is not str:
                kind = ""  # a list or an object could not even be looked up
            if "image_url" in part or kind in _IMAGES:
                media += IMAGE_TOKENS
            elif kind in _SOUNDS:
                media += AUDIO_TOKENS_MAX
            else:
                _gather(part.get("thinking"), texts)
                _gather(part.get("input"), texts)
                if depth < 2:
                    media += content_tokens(part.get("content"), texts, depth + 1)
    return media


def _gather(value: object, texts: list[str]) -> None:
    """Text of a tool's arguments: a string, or an object that the template will write out."""
    if type(value) is str:
        texts.append(value)
    elif type(value) is dict and value:
        texts.append(str(value))


def conversation(messages: list[Any], long: LongTexts | None = None) -> tuple[int, list[str]]:
    """Tokens of a conversation: contents, tool calls, and what the chat template puts around each message.

    And the texts up to the first message with an image or a sound: what two conversations can be known by. Marks stand
    for the `long` ones.
    """
    texts: list[str] = []
    alike: int | None = None
    tokens = TEMPLATE_TOKENS_BASE + TEMPLATE_TOKENS_PER_MESSAGE * len(messages)
    for message in messages:
        if type(message) is not dict:
            continue
        content = message.get("content")
        if type(content) is str:
            texts.append(content)
        elif content is not None:
            before = len(texts)
            media = content_tokens(content, texts)
            tokens += media
            if media and alike is None:
                alike = before
        if len(message) > 2:
            _calls(message, texts)
    return tokens + text_tokens(texts, long), texts if alike is None else texts[:alike]


def _calls(message: dict[str, Any], texts: list[str]) -> None:
    """What an assistant's message says beside its content: reasoning, and calls of tools."""
    _gather(message.get("reasoning_content"), texts)
    _gather(message.get("arguments"), texts)
    _gather(message.get("output"), texts)
    calls = message.get("tool_calls")
    if type(calls) is not list:
        return
    for call in calls:
        function = call.get("function") if type(call) is dict else None
        if type(function) is dict:
            _gather(function.get("name"), texts)
            _gather(function.get("arguments"), texts)


def _size(text: str) -> int:
    """What to compare texts by: letters beyond ASCII make about four times the tokens."""
    return len(text) if text.isascii() else 4 * len(text)


def text_tokens(texts: list[str], long: LongTexts | None = None) -> int:
    """One estimate over all texts."""
    return estimate_texts(texts, long) if texts else 0


def tool_tokens(body: dict[str, Any]) -> int:
    """Tokens of the tools' schemas, which the chat template writes into the prompt."""
    tools = body.get("tools")
    return estimate_schema(tools) if tools else 0


def prompt_tokens(value: object) -> tuple[int, int, int, bool]:
    """(tokens in all, tokens of the longest, how many, exact) of a prompt or input in any of its forms.

    A string, a list of strings, a list of token ids, a list of lists of token ids, or a list of objects with content.
    """
    if type(value) is str:
        tokens = estimate_text(value)
        return tokens, tokens, 1, False
    if type(value) is not list or not value:
        return 0, 0, 1, False
    if type(value[0]) is int:
        return len(value), len(value), 1, True
    if type(value[0]) is str and all(type(one) is str for one in value):
        longest = estimate_text(max(value, key=_size))
        return max(longest, text_tokens(value)), longest, len(value), False
    lengths: list[int] = []
    exact = True
    for one in value:
        if type(one) is list:
            lengths.append(len(one))
            continue
        exact = False
        texts: list[str] = []
        media = content_tokens([one], texts)
        lengths.append(text_tokens(texts) + media)
    return sum(lengths), max(lengths), len(lengths), exact


def prompt_begin(value: object) -> list[str]:
    """The texts that a prompt or input begins with: one for a prompt that stands alone, none for several.

    Token ids are written as four characters each, about as many as a token of text has, so that they are hashed in
    blocks of the same length.
    """
    if type(value) is list and len(value) == 1 and type(value[0]) is not int:
        value = value[0]
    if type(value) is str:
        return [value]
    if type(value) is list and value and type(value[0]) is int:
        try:
            return [array("I", value).tobytes().decode("latin-1")]
        except (TypeError, OverflowError):
            return []  # no list of ids: the engine will say so
    return []
