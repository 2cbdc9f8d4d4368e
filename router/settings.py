"""Settings of the router: where it listens, which models run, who waits for how long."""

from typing import Any

import msgspec

from bramley.common.tls import TlsSettings
from bramley.router.access import AuthSettings
from bramley.router.classes import Classes, Positive, Seconds
from bramley.router.clients import ClientLimits
from bramley.router.policy import Bytes, ModelPolicy
from bramley.router.tracing import TraceSettings


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the supervisor hands to its router.

    Attributes:
        grpc: where clients call; port 0 takes a free one.
        http: where other APIs are served, and Prometheus scrapes; port 0 takes a free one; empty
            for nowhere.
        http_hosts: hosts that http is asked for beside loopback's own names, where it listens on
            loopback, and those whose pages may ask it.
        traces: where they go.
        vllm_metrics: whether metrics are told under vLLM's names as well.
        tls: of grpc and http; beyond loopback they take it.
        auth: who may call them.
        node: gRPC target of the node's NodeService; empty in a router without one.
        models: settings of each model's workers, passed on as they are.
        replicas: workers of a model, where there are more than one.
        policies: when each model is loaded and unloaded.
        memory_bytes: that all models and the store's RAM tier may take together; 0 takes three
            quarters of this machine's RAM, or no limit in a router without a node.
        store_bytes: of them, for the store's RAM tier.
        hang_timeout_s: a worker that is silent, or inside one step, for as long is killed.
        classes: what each class of a model's requests gets.
        clients: what each client may ask, told apart by fairness key.
        running_max: requests of a model on one worker at a time, where not the worker's own limit.
        backlog_bytes: of one answer, kept for a client that does not read.
        responses_s: that an answer of OpenAI's responses is kept for, to be gone on from.
        responses_bytes: of all that are kept; the oldest leave first.
        drain_timeout_s: what a stopping router gives to running requests.
    """

    grpc: str = "127.0.0.1:7410"
    http: str = "127.0.0.1:7411"
    http_hosts: list[str] = []
    traces: TraceSettings = TraceSettings()
    vllm_metrics: bool = False
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    node: str = ""
    models: dict[str, dict[str, Any]] = {}
    replicas: dict[str, Positive] = {}
    policies: dict[str, ModelPolicy] = {}
    memory_bytes: Bytes = 0
    store_bytes: Bytes = 0
    hang_timeout_s: Seconds = 60.0
    classes: Classes = Classes()
    clients: ClientLimits = ClientLimits()
    running_max: dict[str, Positive] = {}
    backlog_bytes: Positive = 1 << 20
    responses_s: Seconds = 3600.0
    responses_bytes: Positive = 256 << 20
    drain_timeout_s: Seconds = 30.0
