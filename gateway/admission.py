"""From a request that has been read to one of three things: in, answered here, or refused.

1. Route: an allowlisted path, or 404; `/livez` and `/readyz` are answered here, to everybody.
2. Caller: the key's tenant, where keys exist; `/v1/models` is answered here.
3. Our own request fields (`X-Headrace-...`): each at most once, each with a value that means something.
4. Body: what it says (`openai.parse_facts`), within the limits.
5. Class, pool, budget and deadline by the policy (`policies.classify`).
6. The body as the engine gets it: the client's bytes, save for fields that only the gateway may set.

The revision is read once; the request keeps it to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.admission_ports import CurrentPolicy, OutputLengths, PolicySource, Scales
from gateway.engine_body import body_for_engine
from gateway.errors import ErrorAnswer, ErrorCode, dialect_of, shown
from gateway.http.messages import RawRequest
from gateway.keys import Caller, KeyStore
from gateway.local_answers import Fleet, LocalAnswer, answer_locally
from gateway.openai import FORM_ENDPOINTS, BodyFacts, BodyLimits, body_limits, parse_facts
from gateway.prefix_chain import prefix_chain
from gateway.request_fields import RequestFields, read_fields
from gateway.routes import Local, route
from gateway.scheduling.model import Request
from gateway.tenants import TOO_MANY_FAILED_KEYS, FailureThrottle, tenant_of
from policies.classify import Classified, Classifier, Refusal, RequestFacts
from policies.document import Policy, Timeouts
from policies.endpoints import GENERATING, Endpoint
from policies.outputs import OutputLengths as Learned
from policies.tokens import Calibration

if TYPE_CHECKING:
    from gateway.trials import Trials
    from policies.kinds import Kind

__all__ = ["Admission", "Admitted", "Fleet", "LocalAnswer"]

USAGE_ENDPOINTS: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
"""Streams that bring a usage chunk when `stream_options.include_usage` asks for it."""

MIN_TIMEOUT_MS: Final = 1000
MAX_MODEL_CHARS: Final = 256


@dataclass(slots=True, eq=False)
class Admitted:
    """A request that may be queued, with all that the exchange needs to send it and to account for it."""

    request: Request
    classified: Classified
    revision_number: int
    endpoint: Endpoint
    stream: bool
    model_public: str
    tenant: str
    key_id: str | None
    forward_authorization: bool  # no keys are checked here: the client's own goes to the engine
    body_parts: list[bytes]  # to be sent one after the other
    path: str  # to send upstream
    method: str
    timeouts: Timeouts
    prompt_estimate: int  # tokens, calibrated
    estimate_raw: int  # tokens, as estimated, for calibration to compare with the engine's count; 0: nothing to learn
    include_usage: bool = False  # the client asked for a usage chunk
    usage_injected: bool = False  # we asked for one that the client must not see
    continue_stream: bool = False  # if its worker dies, another one may go on with it
    rate_fields: bytes = b""  # what is left of the tenant's minute, as response fields


@dataclass(frozen=True, slots=True)
class _Rules:
    """What admission needs of one revision, looked up once a revision: a policy's fields are slow to reach."""

    source: CurrentPolicy
    number: int
    policy: Policy
    classifier: Classifier
    limits: BodyLimits
    body_bytes: int
    timeouts: Timeouts
    total_s: float
    ask_usage: bool
    continue_streams: bool
    lowest: int  # index of the lowest class
    rule_headers: frozenset[bytes]
    trial_headers: frozenset[bytes]  # among them, for a policy that is tried out


@dataclass(slots=True, eq=False)
class _Asked:
    """What the head of a request says, and what that depended on beside the head's bytes."""

    rules: _Rules
    keys_version: int
    endpoint: Endpoint
    fields: RequestFields
    tenant: str
    key_id: str | None
    session: str  # the tenant's own; empty: none
    route: str  # the endpoint's name
    generates: bool
    form: bool  # it comes as a form: nothing of it was counted in tokens
    counts_usage: bool  # one of USAGE_ENDPOINTS
    timeout_ms: int | None
    refused: ErrorAnswer | None  # what is wrong with any body that comes with this head
    kind: Kind | None = None  # of the last request with it


class Admission:
    """The gate of the data plane. `admit` never waits and never raises for what a client sent."""

    def __init__(
        self,
        policy_source: PolicySource,
        keys: KeyStore,
        calibration: Scales,
        output_lengths: OutputLengths,
        fleet_models: Fleet,
        clock: Callable[[], float],
        ready: Callable[[], tuple[bool, str]],
        trials: Trials | None = None,
    ) -> None:
        self._current = policy_source.current
        self._keys = keys
        self._scale = calibration.scale
        self._expect = output_lengths.expect
        # These two, which they nearly always are, compiled code asks without a call of Python's.
        self._calibration = calibration if isinstance(calibration, Calibration) else None
        self._learned = output_lengths if isinstance(output_lengths, Learned) else None
        self._fleet_models = fleet_models
        self._clock = clock
        self._ready = ready
        self._throttle = FailureThrottle()
        self._trials = trials
        self._rules = self._trial_rules = _rules_of(policy_source.current())

    @property
    def lowest(self) -> int:
        """Index of the lowest class of the policy that was in force for the last request."""
        return self._rules.lowest

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        """Decide about one request. An error has the shape that the path's clients parse."""
        answer = self._admit(raw, request_id)
        if isinstance(answer, ErrorAnswer):
            return answer.in_dialect(dialect_of(raw.path))
        return answer

    def _admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        current = self._current()
        rules = self._rules
        trials = self._trials
        if current is not rules.source or (trials is not None and trials.headers is not rules.trial_headers):
            rules = self._rules = _rules_of(current, trials.headers if trials is not None else rules.trial_headers)
        notes = raw.notes
        asked = notes.gate if notes is not None else None
        if not isinstance(asked, _Asked) or asked.rules is not rules or asked.keys_version != self._keys.version:
            found = self._read_head(raw, rules)
            if not isinstance(found, _Asked):
                return found
            asked = found
            if notes is not None:
                notes.gate = asked
        if trials is not None and trials.trial is not None:
            chosen = trials.choose(asked.tenant, asked.fields.session, request_id)
            if chosen is not None:
                rules = self._trial_rules
                if chosen is not rules.source:
                    rules = self._trial_rules = _rules_of(chosen)
        refused = asked.refused
        if len(raw.body) > rules.body_bytes:
            refused = _too_long(raw.body, rules.body_bytes)
        if refused is not None:
            return refused
        facts = parse_facts(asked.endpoint, raw.body, rules.limits, asked.fields.content_type)
        if isinstance(facts, ErrorAnswer):
            return facts
        return self._classify(raw, request_id, rules, asked, facts)

    def _read_head(self, raw: RawRequest, rules: _Rules) -> _Asked | LocalAnswer | ErrorAnswer:
        """Steps 1 to 3: all that the head alone decides."""
        version = self._keys.version
        found = route(raw.method, raw.path)
        if isinstance(found, ErrorAnswer):
            return found
        endpoint = found.target
        if endpoint is Local.LIVEZ or endpoint is Local.READYZ:
            return answer_locally(endpoint, raw.path, {}, self._ready, rules.policy, 0)
        fields = read_fields(raw.headers, rules.rule_headers)
        if isinstance(fields, ErrorAnswer):
            return fields
        caller = self._caller(fields, raw.peer)
        if isinstance(caller, ErrorAnswer):
            return caller
        if isinstance(endpoint, Local):
            created = int(rules.source.revision.created)
            return answer_locally(endpoint, raw.path, self._fleet_models(), self._ready, rules.policy, created)
        tenant = tenant_of(caller, fields.tenant)
        if isinstance(tenant, ErrorAnswer):
            return tenant
        session = f"{tenant}\0{fields.session}" if fields.session else ""
        refused = _coding_refused(endpoint, fields)
        timeout_ms = None if fields.timeout_ms is None else max(MIN_TIMEOUT_MS, fields.timeout_ms)
        return _Asked(
            rules, version, endpoint, fields, tenant, caller.key_id, session, endpoint.value, endpoint in GENERATING,
            endpoint in FORM_ENDPOINTS, endpoint in USAGE_ENDPOINTS, timeout_ms, refused,
        )  # fmt: skip

    def _classify(
        self,
        raw: RawRequest,
        request_id: str,
        rules: _Rules,
        asked: _Asked,
        facts: BodyFacts,
    ) -> Admitted | ErrorAnswer:
        endpoint, fields, tenant = asked.endpoint, asked.fields, asked.tenant
        model = facts.model or self._only_model(rules.policy)
        if isinstance(model, ErrorAnswer):
            return model
        if len(model) > MAX_MODEL_CHARS:
            long = f"it has {len(model)} characters, names have {MAX_MODEL_CHARS} at most"
            message = f"There is no model {shown(model)}: {long}. GET /v1/models lists those that exist."
            return ErrorAnswer(ErrorCode.MODEL_NOT_FOUND, message, "model")
        session = asked.session
        classifier = rules.classifier
        kind = asked.kind
        if (
            kind is None
            or kind.classifier is not classifier
            or kind.model != model
            or kind.service_tier != facts.service_tier
        ):
            found = classifier.kind(
                endpoint, model, tenant, fields.priority, facts.service_tier, asked.timeout_ms, fields.rule_headers
            )
            if isinstance(found, Refusal):
                return ErrorAnswer(ErrorCode(found.code), found.message, found.param)
            kind = asked.kind = found
        model = kind.model  # the same string for all of them: whoever looks it up finds it by identity
        scale = 1.0
        if not facts.prompt_exact:
            scale = self._scale(model) if self._calibration is None else self._calibration.scale(model)
        total = _scaled(facts.prompt_tokens, scale)
        classified = kind.place(total, facts.max_output_tokens, facts.sequences, facts.stream, session or request_id)
        trials = self._trials
        if trials is not None and trials.trial is not None:
            trials.decided(_told(asked, facts, model, total, session or request_id), classified)
        expected, p90 = 0, 0
        if asked.generates:
            limit, learned = facts.max_output_tokens, self._learned
            if learned is not None:
                expected, p90 = learned.expect(tenant, asked.route, limit, model)
            else:
                expected, p90 = self._expect(tenant, asked.route, limit, model)
        longest = total if facts.longest_prompt == facts.prompt_tokens else _scaled(facts.longest_prompt, scale)
        lifetime_s = rules.total_s if classified.deadline_s is None else classified.deadline_s
        inject = (
            facts.stream
            and not facts.include_usage
            and asked.counts_usage
            and (rules.ask_usage or rules.policy.tenant(tenant).tokens_per_min is not None)
        )
        hashes, ends = prefix_chain(facts.begin, longest, tenant, classified.served_model, facts.cache_salt, facts.long)
        request = Request(
            id=request_id,
            tenant=tenant,
            klass=classified.klass,
            model=classified.served_model,
            pools=classified.pools,
            prompt_tokens=longest,
            max_output_tokens=facts.max_output_tokens,
            expected_output=expected,
            p90_output=p90,
            sequences=facts.sequences,
            generates=asked.generates,
            body_bytes=len(raw.body),
            queue_timeout_s=classified.queue_timeout_s,
            deadline=self._clock() + lifetime_s,
            may_queue=fields.may_queue,
            fallback_pools=classified.fallback_pools,
            prompt_exact=facts.prompt_exact,
            prefix_hashes=hashes,
            prefix_ends=ends,
            session=session,
            prefill_tokens=None if longest == total else total,
            budget_tokens=classified.home_budget_tokens,
        )
        return Admitted(
            request,
            classified,
            rules.number,
            endpoint,
            facts.stream,
            model,
            tenant,
            asked.key_id,
            not self._keys.required,
            body_for_engine(raw.body, facts, classified.served_model, inject),
            raw.path,
            raw.method,
            rules.timeouts,
            total,
            0 if facts.prompt_exact or asked.form else facts.prompt_tokens,
            facts.include_usage,
            inject,
            rules.continue_streams and facts.stream and facts.sequences == 1 and asked.counts_usage,
        )

    def _caller(self, fields: RequestFields, peer: str) -> Caller | ErrorAnswer:
        keys = self._keys
        if fields.authorization is None and fields.api_key is not None:
            caller = keys.lookup_key(fields.api_key)
        else:
            caller = keys.lookup(fields.authorization)
        if caller is not None:
            return caller
        if self._throttle.observe_failure(peer, self._clock()):
            return ErrorAnswer(ErrorCode.RATE_LIMIT_EXCEEDED, TOO_MANY_FAILED_KEYS)
        given = fields.authorization is not None or fields.api_key is not None
        what = "The API key is not valid" if given else "An API key is needed"
        return ErrorAnswer(
            ErrorCode.INVALID_API_KEY,
            f"{what}: send 'Authorization: Bearer hr_...' with a key of this gateway.",
            headers=((b"www-authenticate", b"Bearer"),),
        )

    def _only_model(self, policy: Policy) -> str | ErrorAnswer:
        """The model of a request that names none: the only one there is, else 400."""
        names = self._fleet_models()
        if len(names) == 1:
            return next(iter(names))
        if not names and len(policy.models) == 1:
            return next(iter(policy.models))
        message = "model is missing. Name one of those that GET /v1/models lists."
        return ErrorAnswer(ErrorCode.MISSING_PARAMETER, message, "model")


def _scaled(tokens: int, scale: float) -> int:
    return tokens if scale == 1.0 else max(1, int(tokens * scale + 0.5))


def _told(asked: _Asked, facts: BodyFacts, model: str, prompt_tokens: int, key: str) -> RequestFacts:
    """What a policy that is tried out is told of a request."""
    return RequestFacts(
        asked.endpoint,
        model,
        asked.tenant,
        prompt_tokens,
        facts.max_output_tokens,
        facts.sequences,
        facts.stream,
        asked.fields.priority,
        facts.service_tier,
        asked.timeout_ms,
        asked.fields.rule_headers,
        facts.prompt_exact,
        key,
    )


def _rules_of(current: CurrentPolicy, trial_headers: frozenset[bytes] = frozenset()) -> _Rules:
    policy = current.revision.policy
    headers = frozenset(name.lower().encode("ascii") for rule in policy.rules for name in rule.when.header)
    return _Rules(
        current, current.revision.number, policy, current.classifier, body_limits(policy.limits),
        policy.limits.body_bytes, policy.timeouts, policy.timeouts.total_s, policy.admission.ask_usage,
        policy.retries.continue_streams, len(policy.classes) - 1, headers | trial_headers, trial_headers,
    )  # fmt: skip


def _too_long(body: bytes, limit: int) -> ErrorAnswer:
    message = f"The body has {len(body)} bytes; {limit} (limits.body_bytes) are allowed. Send a smaller one."
    return ErrorAnswer(ErrorCode.REQUEST_TOO_LARGE, message)


def _coding_refused(endpoint: Endpoint, fields: RequestFields) -> ErrorAnswer | None:
    """What the head says of a body that is not read here: its coding, its kind."""
    if fields.content_encoding and fields.content_encoding != b"identity":
        message = (
            f"Content-Encoding {shown(fields.content_encoding.decode('latin-1'))} is not read here. Send it plain."
        )
        return ErrorAnswer(ErrorCode.UNSUPPORTED_ENCODING, message)
    if endpoint not in FORM_ENDPOINTS and fields.content_type.startswith(b"multipart/"):
        message = "This path takes JSON, not a form. Send Content-Type: application/json."
        return ErrorAnswer(ErrorCode.UNSUPPORTED_MEDIA_TYPE, message)
    return None
