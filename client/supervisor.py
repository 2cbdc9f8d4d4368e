"""Asks a node's supervisor what it runs, and has it read its settings again."""

import grpc

from bramley.client import replies
from bramley.client.cluster import Process
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.protos.v1.node_pb2 import ReloadRequest, WatchRequest
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


def reload(target: str, timeout_s: float) -> list[str]:
    """Have the settings of the node at ``target`` read again.

    Returns:
        Keys that differ.

    Raises:
        RemoteError: they are wrong, or differ in what only a restart can change: nothing has been
            changed. Or nobody answered in time.
    """
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        stub = NodeServiceStub(channel)
        with replies.remote_errors():
            return list(stub.Reload(ReloadRequest(), timeout=timeout_s).changed)
