"""Asks a node's supervisor what it runs."""

import grpc

from bramley.client import replies
from bramley.client.cluster import Process
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.protos.v1.node_pb2 import WatchRequest
from bramley.protos.v1.node_pb2_grpc import NodeServiceStub


def processes(target: str, timeout_s: float) -> list[Process]:
    """List the processes of the node whose NodeService is at ``target``.

    Returns:
        All of them, the supervisor included.

    Raises:
        RemoteError: nobody answered in time.
    """
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        call = NodeServiceStub(channel).Watch(WatchRequest(), timeout=timeout_s)
        try:
            with replies.remote_errors():
                for now in call:
                    return [replies.process(each) for each in now.processes]
            return []
        finally:
            call.cancel()
