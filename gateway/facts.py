"""What a request body says that decides where it runs, for each endpoint.

Nothing here is stricter than the engines are: unknown fields, missing contents, tools without parameters pass, and
what merely looks wrong is left to the engine to judge in its own words. Refused are only values that no engine takes
(negative counts) and counts beyond the policy's bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.body_fields import (
    BITS,
    CACHE_SALT,
    COMPLETION_LIMIT,
    COUNTS,
    LOGPROBS,
    SERVICE_TIER,
    STREAM,
    STREAM_OPTIONS,
    TOOLS,
)
from gateway.errors import ErrorAnswer, ErrorCode, shown
from gateway.prompts import (
    content_tokens,
    conversation,
    prompt_begin,
    prompt_tokens,
    text_tokens,
    tool_tokens,
)
from policies.document import Limits
from policies.endpoints import Endpoint
from policies.tokens import TEMPLATE_TOKENS_BASE, TEMPLATE_TOKENS_PER_MESSAGE, LongTexts, estimate_text

MAX_TOKENS_CAP: Final = (1 << 31) - 1
"""Larger counts are read as this one: nothing below needs to care about their size."""

COMPLETION_DEFAULT_TOKENS: Final = 16
"""What `/v1/completions` generates where nothing is asked (OpenAI's reference; vLLM keeps it)."""

_COUNTS: Final = ("n", "best_of")

_NO_TEXTS: Final[list[str]] = []  # shared, so never added to

_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,18}")


class BodyRefused(Exception):  # noqa: N818 - it is an answer on its way out, not a fault
    """Carries the answer out of the extraction to `openai.parse_facts`, which returns it."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Of a policy's limits those that a body is held against: its own fields are slow to reach."""

    json_depth: int
    max_sequences: int
    refused_fields: tuple[str, ...]


def body_limits(limits: Limits) -> BodyLimits:
    """Those of a policy."""
    return BodyLimits(limits.json_depth, limits.max_sequences, limits.refused_fields)


@dataclass(slots=True)
class BodyFacts:
    """What the body says. Token counts are estimates unless `prompt_exact`."""

    model: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)  # by their top-level names, of JSON bodies
    begin: list[str] = field(default_factory=list)  # texts of the prompt from its beginning; not always to its end
    long: LongTexts | None = None  # those for which marks stand in `begin` and in the contents of `messages`
    marks: int = 0  # which of the fields mean something here (`body_fields`)
    messages: Any = None  # as the body has them, and its `max_tokens`: found on the way
    max_tokens: Any = None
    stream: bool = False
    prompt_tokens: int = 1  # of all prompts together
    longest_prompt: int = 1  # of the longest sequence that the engine will see
    prompt_exact: bool = False
    max_output_tokens: int | None = None  # a sequence; None: left to the engine
    sequences: int = 1
    include_usage: bool = False
    stream_options: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_salt: str = ""  # prompts with another one share no cache
    model_span: tuple[int, int] | None = None  # where the model's value stands in a form


# === Reading single fields ===


def whole_number(value: object) -> int | None:
    """A count as the engines read it: whole floats and digits in a string count, the rest is theirs to refuse."""
    if type(value) is int:
        number = value
    elif (type(value) is float and value.is_integer()) or (type(value) is str and _DIGITS.fullmatch(value)):
        number = int(value)
    else:
        return None
    return max(-MAX_TOKENS_CAP, min(number, MAX_TOKENS_CAP))


def flag(value: object) -> bool:
    """A boolean as the engines read it: `"true"`, `"1"` and 1 count."""
    if value is True or value is False:
        return value
    if type(value) is str:
        return value.lower() in ("true", "1", "t", "yes", "y", "on")
    return type(value) in (int, float) and value == 1.0


def _refuse(code: ErrorCode, message: str, param: str) -> BodyRefused:
    return BodyRefused(ErrorAnswer(code, message, param))


def _output_limit(body: dict[str, Any], name: str) -> int | None:
    """A limit that may not be negative; None where none is set, or none that this understands."""
    return _limit_of(body.get(name), name)


def _limit_of(value: object, name: str) -> int | None:
    number = None if value is None else whole_number(value)
    if number is not None and number < 0:
        raise _refuse(ErrorCode.INVALID_VALUE, f"{name} must not be negative, got {shown(value)}.", name)
    return number


def _sequences(body: dict[str, Any], prompts: int, limits: BodyLimits) -> int:
    """Sequences that the engine will decode: the larger of `n` and `best_of`, for each prompt."""
    answers = 1
    for name in _COUNTS:
        if name not in body:
            continue
        number = whole_number(body[name])
        if number is None:
            continue
        if number < 1:
            raise _refuse(ErrorCode.INVALID_VALUE, f"{name} must be at least 1, got {shown(body[name])}.", name)
        if number > limits.max_sequences:
            message = (
                f"{name} is {shown(body[name])}; at most {limits.max_sequences} (limits.max_sequences) are allowed."
            )
            raise _refuse(ErrorCode.LIMIT_EXCEEDED, message, name)
        answers = max(answers, number)
    if answers * prompts == 1:
        return 1
    if answers * prompts > limits.max_sequences:
        message = (
            f"{prompts} prompts with {answers} answers each are {answers * prompts} sequences; at most "
            f"{limits.max_sequences} (limits.max_sequences) are allowed. Split the request."
        )
        raise _refuse(ErrorCode.LIMIT_EXCEEDED, message, "prompt")
    return answers * prompts


def _no_negative(body: dict[str, Any], *names: str) -> None:
    for name in names:
        value = body.get(name)
        if type(value) is int and value < 0:
            raise _refuse(ErrorCode.INVALID_VALUE, f"{name} must not be negative, got {shown(value)}.", name)


# === Endpoints ===


def _prompt(facts: BodyFacts, tokens: int, longest: int | None = None) -> None:
    facts.prompt_tokens = max(1, tokens)
    facts.longest_prompt = facts.prompt_tokens if longest is None else max(1, longest)


def _conversation(messages: object) -> list[Any]:
    if type(messages) is list:
        return messages
    if messages is None:
        raise _refuse(ErrorCode.MISSING_PARAMETER, "messages is missing; it has to be a list of messages.", "messages")
    raise _refuse(ErrorCode.INVALID_VALUE, f"messages has to be a list, got {shown(messages)}.", "messages")


def _tools_first(body: dict[str, Any]) -> list[str]:
    """The tools as a text: chat templates write them before the conversation."""
    tools = body.get("tools")
    return [str(tools)] if tools else []


def chat(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    """A conversation, as most requests are."""
    has = facts.marks
    tokens, facts.begin = conversation(_conversation(facts.messages), facts.long)
    if has & TOOLS:
        facts.begin = _tools_first(body) + facts.begin
        tokens += tool_tokens(body)
    _prompt(facts, tokens)
    # The newer name wins, but neither may be negative.
    newer = _output_limit(body, "max_completion_tokens") if has & COMPLETION_LIMIT else None
    older = _limit_of(facts.max_tokens, "max_tokens")
    facts.max_output_tokens = older if newer is None else newer
    if has & COUNTS:
        facts.sequences = _sequences(body, 1, limits)
    if has & LOGPROBS:
        _no_negative(body, "top_logprobs", "prompt_logprobs")


def _completions(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    prompt = body.get("prompt")
    if prompt is None and "prompt_embeds" not in body:
        raise _refuse(ErrorCode.MISSING_PARAMETER, "prompt is missing.", "prompt")
    tokens, longest, count, facts.prompt_exact = prompt_tokens(prompt)
    _prompt(facts, tokens, longest)
    facts.begin = prompt_begin(prompt)
    limit = _output_limit(body, "max_tokens")
    facts.max_output_tokens = COMPLETION_DEFAULT_TOKENS if limit is None else limit
    facts.sequences = _sequences(body, count, limits)
    _no_negative(body, "logprobs", "prompt_logprobs")


def _responses(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    given = body.get("input")
    begin = _tools_first(body)
    asked: list[str] = []
    if type(given) is list:
        tokens, asked = conversation(given)
    else:
        tokens = TEMPLATE_TOKENS_BASE + prompt_tokens(given)[0]
        asked = prompt_begin(given)
    instructions = body.get("instructions")
    if type(instructions) is str:
        tokens += estimate_text(instructions) + TEMPLATE_TOKENS_PER_MESSAGE
        begin.append(instructions)
    _prompt(facts, tokens + tool_tokens(body))
    # What an earlier response holds stands between the instructions and this input, and only the engine has it.
    facts.begin = begin + asked if body.get("previous_response_id") is None else begin
    facts.max_output_tokens = _output_limit(body, "max_output_tokens")
    _no_negative(body, "top_logprobs")


def _anthropic(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    begin = _tools_first(body)
    tokens, asked = conversation(_conversation(facts.messages), facts.long)
    tokens += tool_tokens(body)
    system = body.get("system")
    if system:
        texts: list[str] = []
        tokens += content_tokens(system, texts) + TEMPLATE_TOKENS_PER_MESSAGE
        tokens += text_tokens(texts)
        begin += texts
    _prompt(facts, tokens)
    facts.begin = begin + asked
    facts.max_output_tokens = _output_limit(body, "max_tokens")


def _inputs(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    """Embeddings, classification and pooling: `input` in any of its forms, or a conversation."""
    messages = body.get("messages")
    if type(messages) is list:
        _prompt(facts, conversation(messages, facts.long)[0])
        return
    tokens, longest, _, facts.prompt_exact = prompt_tokens(body.get("input"))
    _prompt(facts, tokens, longest)


def _pairs(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    """Rerank and score: the query goes in front of each document."""
    query_all, query, queries, _ = prompt_tokens(_first(body, "query", "queries", "text_1", "data_1"))
    documents = _first(body, "documents", "text_2", "data_2", "items")
    tokens, longest, count, _ = prompt_tokens(documents)
    _prompt(facts, tokens + (query * count if queries == 1 else query_all), query + longest)


def _first(body: dict[str, Any], *names: str) -> object:
    return next((body[name] for name in names if body.get(name) is not None), None)


def _text_only(body: dict[str, Any], facts: BodyFacts, limits: BodyLimits) -> None:
    """Tokenizing takes no place in a model, however long the text is."""


EXTRACT: Final[dict[Endpoint, Callable[[dict[str, Any], BodyFacts, BodyLimits], None]]] = {
    Endpoint.CHAT: chat,
    Endpoint.COMPLETIONS: _completions,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _anthropic,
    Endpoint.EMBEDDINGS: _inputs,
    Endpoint.CLASSIFY: _inputs,
    Endpoint.POOLING: _inputs,
    Endpoint.RERANK: _pairs,
    Endpoint.SCORE: _pairs,
    Endpoint.TOKENIZE: _text_only,
    Endpoint.DETOKENIZE: _text_only,
}
"""What each endpoint with a JSON body adds to the fields that all have."""


def common(body: dict[str, Any], limits: BodyLimits, long: LongTexts | None = None) -> BodyFacts:
    """The fields that every JSON body may have."""
    if limits.refused_fields:
        for name in limits.refused_fields:
            if name in body:
                message = f"{name} is not allowed here (limits.refused_fields). Leave it out."
                raise _refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, name)
    model: Any = None
    stream: Any = None
    messages: Any = None
    max_tokens: Any = None
    bits = BITS
    has = 0
    for name, value in body.items():
        # What most bodies have is told by comparing, which compiled code does faster than it looks up.
        if name == "messages":
            messages = value
        elif name == "model":
            model = value
        elif name == "max_tokens":
            max_tokens = value
        elif name == "stream":
            stream = value
            has |= STREAM
        else:
            has |= bits.get(name, 0)
    if model is not None and type(model) is not str:
        raise _refuse(ErrorCode.INVALID_VALUE, f"model has to be a string, got {shown(model)}.", "model")
    facts = BodyFacts(model or None, body, _NO_TEXTS, long, has, messages, max_tokens)
    if has & STREAM:
        facts.stream = flag(stream)
        if has & STREAM_OPTIONS:
            options = body["stream_options"]
            if type(options) is dict:
                facts.stream_options = options
                facts.include_usage = flag(options.get("include_usage"))
    if has & SERVICE_TIER:
        tier = body["service_tier"]
        if type(tier) is str:
            facts.service_tier = tier
    if has & CACHE_SALT:
        salt = body["cache_salt"]
        if type(salt) is str:
            facts.cache_salt = salt
    return facts
