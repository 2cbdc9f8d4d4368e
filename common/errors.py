"""Every error that may cross a process border, and its one place in the status table.

BramleyError
├── InvalidRequest           INVALID_ARGUMENT     names the field
│   └── ContextTooLong       INVALID_ARGUMENT     both numbers
├── UnknownResource          NOT_FOUND            model, adapter, worker
├── AlreadyExists            ALREADY_EXISTS
├── NotLoaded                FAILED_PRECONDITION
├── NeverFits                FAILED_PRECONDITION  both numbers
├── CannotEmbed              FAILED_PRECONDITION  why not
├── Overloaded               RESOURCE_EXHAUSTED   retry later
├── NoMemory                 RESOURCE_EXHAUSTED   fits later
├── DeviceOom                RESOURCE_EXHAUSTED   not on this worker
├── SlowReader               RESOURCE_EXHAUSTED   does not read its answer
├── Aborted                  CANCELLED            by an Abort
├── QueueTimeout             DEADLINE_EXCEEDED
├── DeadlineUnmeetable       DEADLINE_EXCEEDED    refused at once
├── NoReadyWorker            UNAVAILABLE          retry later
├── WorkerLost               UNAVAILABLE          how many tokens were sent
├── StoreLost                UNAVAILABLE          retry later
├── Draining                 UNAVAILABLE          retry elsewhere
├── Unauthenticated          UNAUTHENTICATED
├── PermissionDenied         PERMISSION_DENIED
├── Unsupported              UNIMPLEMENTED        a whole RPC
├── PoisonRequest            INTERNAL             killed two workers
└── EngineFault              INTERNAL
SettingsError                exit code 2          names the key
CannotListen                 exit code 1          names the address

common/status.py turns these into gRPC statuses with details and back.
"""

from typing import ClassVar


class BramleyError(Exception):
    """An operating error: somebody's to act on, never a broken invariant.

    Attributes:
        code: name of the gRPC status code: who must act.
        reason: UPPER_SNAKE: why.
        facts: numbers and names for the one who acts; strings on the wire.
        retry_after_s: set only where trying again can help.
    """

    code: str = "INTERNAL"
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        facts: dict[str, object] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.facts = {key: str(value) for key, value in (facts or {}).items()}
        self.retry_after_s = retry_after_s


class InvalidRequest(BramleyError):
    """A field of the request is wrong; ``field`` is its path, as in ``stop.max_tokens``."""

    code = "INVALID_ARGUMENT"
    default_reason = "INVALID_FIELD"

    def __init__(
        self,
        field: str,
        problem: str,
        *,
        reason: str | None = None,
        facts: dict[str, object] | None = None,
    ) -> None:
        super().__init__(f"{field}: {problem}", reason=reason, facts=facts)
        self.field = field
        self.problem = problem


class ContextTooLong(InvalidRequest):
    """Prompt and answer do not fit the model's context."""

    default_reason = "CONTEXT_LENGTH_EXCEEDED"

    def __init__(self, field: str, *, prompt: int, max_tokens: int, limit: int) -> None:
        super().__init__(
            field,
            f"{prompt} prompt tokens and {max_tokens} to generate exceed the context of {limit}",
            facts={"prompt": prompt, "max_tokens": max_tokens, "limit": limit},
        )


class UnknownResource(BramleyError):
    """Nothing of that ``kind`` ("model", "adapter", ...) has that ``name``."""

    code = "NOT_FOUND"
    default_reason = "NOT_FOUND"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} is named {name!r}", facts={"kind": kind, "name": name})
        self.kind = kind
        self.name = name


class AlreadyExists(BramleyError):
    """The name is taken, by a request in flight or by another spec."""

    code = "ALREADY_EXISTS"
    default_reason = "ALREADY_EXISTS"


class NotLoaded(BramleyError):
    """The state it is in does not allow the call."""

    code = "FAILED_PRECONDITION"
    default_reason = "MODEL_NOT_LOADED"


class NeverFits(BramleyError):
    """A model takes more memory than there is for all of them together."""

    code = "FAILED_PRECONDITION"
    default_reason = "MEMORY_BUDGET"

    def __init__(self, model: str, *, needed: int, budget: int) -> None:
        super().__init__(
            f"model {model!r} takes {needed} bytes, and {budget} are the budget of all models",
            facts={"model": model, "needed": needed, "budget": budget},
        )


class CannotEmbed(BramleyError):
    """The model has no embeddings."""

    code = "FAILED_PRECONDITION"
    default_reason = "NO_EMBEDDINGS"


class NoMemory(BramleyError):
    """A model fits once others have left."""

    code = "RESOURCE_EXHAUSTED"
    default_reason = "MEMORY_IN_USE"

    def __init__(self, model: str, *, needed: int, free: int) -> None:
        super().__init__(
            f"model {model!r} takes {needed} bytes, and {free} are free until other models leave",
            facts={"model": model, "needed": needed, "free": free},
            retry_after_s=5.0,
        )


class Overloaded(BramleyError):
    """A bounded queue is full."""

    code = "RESOURCE_EXHAUSTED"
    default_reason = "QUEUE_FULL"


class DeviceOom(BramleyError):
    """The device has no memory for this request."""

    code = "RESOURCE_EXHAUSTED"
    default_reason = "DEVICE_OOM"


class Aborted(BramleyError):
    """Somebody ended the request through Abort."""

    code = "CANCELLED"
    default_reason = "ABORTED"


class QueueTimeout(BramleyError):
    """It waited as long as it may."""

    code = "DEADLINE_EXCEEDED"
    default_reason = "QUEUE_TIMEOUT"


class SlowReader(BramleyError):
    """Its client does not read what it asked for, and no more of it is kept."""

    code = "RESOURCE_EXHAUSTED"
    default_reason = "SLOW_READER"


class DeadlineUnmeetable(BramleyError):
    """Its deadline would pass before its first token: it is not begun."""

    code = "DEADLINE_EXCEEDED"
    default_reason = "DEADLINE_UNMEETABLE"


class NoReadyWorker(BramleyError):
    """No worker of the model serves now, and none is about to."""

    code = "UNAVAILABLE"
    default_reason = "NO_READY_WORKER"


class WorkerLost(BramleyError):
    """The worker of a model died under the request, of which ``tokens_emitted`` were sent."""

    code = "UNAVAILABLE"
    default_reason = "WORKER_LOST"

    def __init__(self, model: str, *, tokens_emitted: int = 0) -> None:
        super().__init__(
            f"the worker of model {model!r} died under the request",
            facts={"model": model, "tokens_emitted": tokens_emitted},
            retry_after_s=1.0,
        )
        self.tokens_emitted = tokens_emitted


class StoreLost(BramleyError):
    """The cache store died under the call."""

    code = "UNAVAILABLE"
    default_reason = "STORE_LOST"


class Draining(BramleyError):
    """The process finishes what it has and admits nothing more."""

    code = "UNAVAILABLE"
    default_reason = "DRAINING"


class Unauthenticated(BramleyError):
    """The call has no token that is known; which one it had is told to nobody."""

    code = "UNAUTHENTICATED"
    default_reason = "UNAUTHENTICATED"


class PermissionDenied(BramleyError):
    """Its token does not allow this."""

    code = "PERMISSION_DENIED"
    default_reason = "PERMISSION_DENIED"


class Unsupported(BramleyError):
    """The whole RPC is absent here; an unsupported field is an InvalidRequest."""

    code = "UNIMPLEMENTED"
    default_reason = "UNSUPPORTED"


class PoisonRequest(BramleyError):
    """Two workers died under it: it is given to no other for a while."""

    code = "INTERNAL"
    default_reason = "POISON_REQUEST"


class EngineFault(BramleyError):
    """A bug of ours, contained to the request."""

    code = "INTERNAL"
    default_reason = "ENGINE_FAULT"


class SettingsError(Exception):
    """A setting is unknown, missing or out of range; ``key`` is its path."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class CannotListen(OSError):
    """An address is somebody else's, or not ours to bind."""

    def __init__(self, address: str, problem: object) -> None:
        super().__init__(f"cannot listen on {address}: {problem}")
