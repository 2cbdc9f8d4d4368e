"""Asks a node's workers which namespaces of the cache store are theirs."""

from collections.abc import Iterable

import grpc

from bramley.client.cluster import Process
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.protos.v1.worker_pb2 import InfoRequest
from bramley.protos.v1.worker_pb2_grpc import WorkerServiceStub


def roots_by_model(processes: Iterable[Process], timeout_s: float) -> dict[str, list[bytes]]:
    """Ask each worker that runs.

    Returns:
        Roots by the name of the model; a worker that does not answer is left out. Two models of
        one identity share their namespaces.
    """
    found: dict[str, list[bytes]] = {}
    for one in sorted(processes, key=lambda each: each.name):
        if (one.role, one.state) != ("worker", "running"):
            continue
        with grpc.insecure_channel(one.address, options=CHANNEL_OPTIONS) as channel:
            try:
                told = WorkerServiceStub(channel).Info(InfoRequest(), timeout=timeout_s)
            except grpc.RpcError:
                continue
        found[one.name] = list(told.cache_roots)
    return found
