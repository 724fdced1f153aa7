"""What a client asks of the simulated engine: parsed and judged as vLLM 0.32 does, with its wording. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from workers.engines.simulator_text import IMAGE_PIECE, IMAGE_TOKENS, Vocabulary, pieces_of

MAX_LOGPROBS: Final = 20
MAX_CHARS_PER_TOKEN: Final = 32
COMPLETION_DEFAULT_TOKENS: Final = 16
BUSY_MESSAGE: Final = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
DEAD_MESSAGE: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class ApiError(Exception):
    """An answer that is an error. `detail`: FastAPI's own shape instead of OpenAI's."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None, detail: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.detail = detail

    def payload(self) -> dict[str, object]:
        """The answer's body."""
        if self.detail:
            return {"detail": self.message}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    def body(self) -> bytes:
        """The answer's body, compact as vLLM writes it."""
        return orjson.dumps(self.payload())


def not_found() -> ApiError:
    """A path this engine does not serve."""
    return ApiError(404, "Not Found", detail=True)


def busy() -> ApiError:
    """The queue is full."""
    return ApiError(503, BUSY_MESSAGE, "Service Unavailable")


def dead() -> ApiError:
    """The engine is broken."""
    return ApiError(500, DEAD_MESSAGE, "InternalServerError")


def invalid(kind: str, loc: str, message: str, given: str, context: str = "") -> ApiError:
    """One failed field, in pydantic's words as vLLM repeats them."""
    text = f"{{'type': {kind!r}, 'loc': {loc!r}, 'msg': {message!r}, 'input': {given!r}{context}}}"
    return ApiError(400, f"1 validation error:\n  {text}", "Bad Request", loc)


def refused(param: str, value: object, message: str) -> ApiError:
    """A value of the right type that cannot be served."""
    return ApiError(400, f"{message} (parameter={param}, value={value})", "BadRequestError", param)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)


def parse_object(body: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object of a request body. Raises ApiError."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(400, message, "Bad Request")
    if not body:
        raise invalid("missing", "body", "Field required", "None")
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = _parse_leniently(body)
    if not isinstance(data, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("model_attributes_type", "body", message, _shown(data))
    return data


def _parse_leniently(body: bytes) -> object:
    """What the standard library makes of a body that orjson refuses: NaN passes, errors get their position."""
    try:
        return json.loads(body.decode("utf-8"))
    except json.JSONDecodeError as error:
        context = f", 'ctx': {{'error': {error.msg!r}}}"
        place = f"body.{error.pos}"
        raise invalid("json_invalid", place, "JSON decode error", "<dict of 0 items>", context) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "There was an error parsing the body", detail=True) from error


def _integer(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    try:
        number = float(value)
        whole = int(number)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(value, str):
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid("int_parsing", f"body.{name}", message, _shown(value)) from error
        raise invalid("int_type", f"body.{name}", "Input should be a valid integer", _shown(value)) from error
    if whole != number:
        message = "Input should be a valid integer, got a number with a fractional part"
        raise invalid("int_from_float", f"body.{name}", message, _shown(value))
    return whole


def _number(data: Mapping[str, Any], name: str, default: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        message = "Input should be a valid number, unable to parse string as a number"
        raise invalid("float_parsing", f"body.{name}", message, _shown(value)) from error


def _strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _flag(data: Mapping[str, Any], name: str) -> bool:
    return data.get(name) is True


@dataclass(frozen=True, slots=True)
class Generation:
    """A chat or completion request that will be served. `max_tokens` is what remains after clamping to the context."""

    chat: bool
    model: str
    prompts: tuple[tuple[str, ...], ...]  # each as its tokens' text
    max_tokens: tuple[int, ...]  # for each prompt
    asked_max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    n: int
    seed: int | None
    greedy: bool
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    include_stop: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None  # how many alternatives; None: no logprobs
    echo: bool
    priority: int
    cache_salt: str


class RequestParser:
    """Judges request bodies for one engine."""

    def __init__(self, models: tuple[str, ...], max_model_len: int, vocabulary: Vocabulary) -> None:
        self.models = models
        self.max_model_len = max_model_len
        self.vocabulary = vocabulary

    def model_of(self, data: Mapping[str, Any]) -> str:
        """The model a request names, the first served one where it names none. Raises ApiError 404."""
        model = data.get("model")
        if model is None or model == "":
            return self.models[0]
        if model not in self.models:
            message = f"The model `{model}` does not exist. Valid aliases: {', '.join(self.models)}."
            raise ApiError(404, message, "NotFoundError", "model")
        return str(model)

    def chat_pieces(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        """The tokens of a conversation after the chat template. Raises ApiError."""
        messages = data.get("messages")
        if messages is None:
            raise invalid("missing", "body.messages", "Field required", _shown(data))
        if not isinstance(messages, list):
            raise invalid("list_type", "body.messages", "Input should be a valid list", _shown(messages))
        if not messages:
            message = "Cannot apply chat template to an empty conversation. Provide at least one message."
            raise ApiError(400, message)
        self.check_characters(sum(_characters(each.get("content")) for each in messages if isinstance(each, dict)))
        pieces: list[str] = []
        if data.get("tools"):
            pieces += pieces_of("<|im_start|>tools\n" + orjson.dumps(data["tools"]).decode() + "<|im_end|>\n")
        for index, message in enumerate(messages):
            if not isinstance(message, dict):
                place = f"body.messages.{index}"
                raise invalid("dict_type", place, "Input should be a valid dictionary", _shown(message))
            pieces += pieces_of(f"<|im_start|>{message.get('role', 'user')}\n")
            pieces += _content_pieces(message.get("content"))
            if message.get("tool_calls"):
                pieces += pieces_of(orjson.dumps(message["tool_calls"]).decode())
            pieces += ("<|im_end|>", "\n")
        if data.get("continue_final_message") is True:
            del pieces[-2:]
        elif data.get("add_generation_prompt") is not False:
            pieces += pieces_of("<|im_start|>assistant\n")
        return tuple(pieces)

    def prompt_pieces(self, data: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """The tokens of each prompt of a completion: a text, texts, token ids or lists of them. Raises ApiError."""
        prompt = data.get("prompt")
        if prompt is None or prompt in ("", []):
            message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
            raise ApiError(400, message, param="prompt")
        if isinstance(prompt, str):
            return (self._checked_text(prompt),)
        if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
            return (tuple(self.vocabulary.decode(prompt)),)
        if isinstance(prompt, list) and all(isinstance(item, str) for item in prompt):
            return tuple(self._checked_text(item) for item in prompt)
        if isinstance(prompt, list) and all(
            isinstance(item, list) and all(isinstance(token, int) for token in item) for item in prompt
        ):
            return tuple(tuple(self.vocabulary.decode(item)) for item in prompt)
        raise invalid("string_type", "body.prompt.str", "Input should be a valid string", _shown(prompt))

    def _checked_text(self, text: str) -> tuple[str, ...]:
        self.check_characters(len(text))
        return tuple(pieces_of(text))

    def check_characters(self, characters: int) -> None:
        """Refuse text that no tokenizer could fit, before tokenizing it. Raises ApiError."""
        most = MAX_CHARS_PER_TOKEN * self.max_model_len
        if characters > most:
            raise refused(
                "input_text",
                characters,
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{characters} characters (more than {most} characters, which is the upper bound for "
                f"{self.max_model_len} input tokens). Please reduce the length of the input prompt.",
            )

    def check_length(self, tokens: int) -> None:
        """Refuse a prompt longer than the context. Raises ApiError."""
        if tokens > self.max_model_len:
            raise refused(
                "input_tokens",
                self.max_model_len + 1,
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"at least {self.max_model_len + 1} input tokens, which exceeds this limit even without any output "
                "tokens. Please reduce the length of the input prompt.",
            )

    def generation(self, data: Mapping[str, Any], *, chat: bool, priority_header: str | None = None) -> Generation:
        """A chat or completion request. Raises ApiError."""
        asked = _integer(data, "max_completion_tokens") if chat else None
        if asked is None:
            asked = _integer(data, "max_tokens")
        min_tokens = _integer(data, "min_tokens") or 0
        n = _integer(data, "n")
        n = 1 if n is None else n
        seed, priority = _integer(data, "seed"), _integer(data, "priority") or 0
        temperature, top_p = _number(data, "temperature", 1.0), _number(data, "top_p", 1.0)
        stream = _flag(data, "stream")
        options = data.get("stream_options")
        if options is not None and not stream:
            message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
            raise ApiError(400, message, param="stream_options")
        options = options if isinstance(options, dict) else {}
        if chat and data.get("messages") is not None and data.get("tools") and data.get("tool_choice") != "none":
            message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise ApiError(400, message)
        if not chat and data.get("suffix"):
            raise ApiError(400, "suffix is only supported for models with FIM completion rendering", param="suffix")
        prompts = (self.chat_pieces(data),) if chat else self.prompt_pieces(data)
        model = self.model_of(data)
        greedy = temperature < 1e-5
        self._check_sampling(n, greedy, temperature, top_p)
        if asked is not None and asked > self.max_model_len:
            raise refused(
                "max_tokens",
                asked,
                f"max_tokens={asked} cannot be greater than max_model_len={self.max_model_len}. "
                "Please request fewer output tokens.",
            )
        echo = not chat and _flag(data, "echo")
        max_tokens = tuple(self._room(len(prompt), asked, chat=chat, echo=echo) for prompt in prompts)
        return Generation(
            chat=chat,
            model=model,
            prompts=prompts,
            max_tokens=max_tokens,
            asked_max_tokens=asked,
            min_tokens=min_tokens,
            ignore_eos=_flag(data, "ignore_eos"),
            n=n,
            seed=seed,
            greedy=greedy,
            stop=_strings(data.get("stop")),
            stop_token_ids=tuple(item for item in data.get("stop_token_ids") or () if isinstance(item, int)),
            include_stop=_flag(data, "include_stop_str_in_output"),
            stream=stream,
            include_usage=_flag(options, "include_usage"),
            continuous_usage=_flag(options, "include_usage") and _flag(options, "continuous_usage_stats"),
            logprobs=self._logprobs(data, chat=chat),
            echo=echo,
            priority=_priority(priority_header, priority),
            cache_salt=str(data.get("cache_salt") or ""),
        )

    def _room(self, prompt_tokens: int, asked: int | None, *, chat: bool, echo: bool) -> int:
        self.check_length(prompt_tokens)
        if asked is None:
            asked = self.max_model_len if chat else COMPLETION_DEFAULT_TOKENS
        if asked == 0 and echo:
            return 1  # as vLLM: the prompt's logprobs cost one token
        room = min(asked, self.max_model_len - prompt_tokens)
        if room < 1:
            raise refused("max_tokens", room, f"max_tokens must be at least 1, got {room}.")
        return room

    @staticmethod
    def _check_sampling(n: int, greedy: bool, temperature: float, top_p: float) -> None:
        if n < 1:
            raise ApiError(400, f"n must be at least 1, got {n}.")
        if temperature < 0:
            raise refused("temperature", temperature, f"temperature must be non-negative, got {temperature}.")
        if temperature > 2:
            raise refused("temperature", temperature, f"temperature must be in [0, 2], got {temperature}.")
        if not 0 < top_p <= 1:
            raise refused("top_p", top_p, f"top_p must be in (0, 1], got {top_p}.")
        if n > 1 and greedy:
            raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")

    @staticmethod
    def _logprobs(data: Mapping[str, Any], *, chat: bool) -> int | None:
        if chat:
            if not _flag(data, "logprobs"):
                return None
            count = _integer(data, "top_logprobs") or 0
        else:
            asked = _integer(data, "logprobs")
            if asked is None:
                return None
            count = asked
        if count > MAX_LOGPROBS:
            message = f"Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
            raise refused("logprobs", count, message)
        return max(0, count)


def _priority(header: str | None, body: int) -> int:
    """The header's integer, else the body's: a header that is none is ignored."""
    try:
        return body if header is None else int(header)
    except ValueError:
        return body


def _characters(content: object) -> int:
    if isinstance(content, list):
        return sum(
            len(part["text"]) for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return len(content) if isinstance(content, str) else 0


def _content_pieces(content: object) -> list[str]:
    if isinstance(content, str):
        return pieces_of(content)
    pieces: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            pieces += pieces_of(part["text"])
        elif isinstance(part, dict) and "image" in str(part.get("type")):
            pieces += [IMAGE_PIECE] * IMAGE_TOKENS
        elif isinstance(part, str):
            pieces += pieces_of(part)
    return pieces
