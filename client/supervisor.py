"""Asks a node's supervisor what it runs and by which settings, and has it read them again."""

import grpc

from bramley.client import replies
from bramley.client.cluster import Process
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.protos.v1.node_pb2 import ReloadRequest, WatchRequest, WatchResponse
from bramley.protos.v1.node_pb2_grpc import NodeServiceStub


def processes(target: str, timeout_s: float) -> list[Process]:
    """List the processes of the node whose NodeService is at ``target``.

    Returns:
        All of them, the supervisor included.

    Raises:
        RemoteError: nobody answered in time.
    """
    return [replies.process(each) for each in _now(target, timeout_s).processes]


def router_settings(target: str, timeout_s: float) -> bytes:
    """Tell the router's settings, as the node at ``target`` last read them.

    Returns:
        JSON of router/settings.py's RouterSettings.

    Raises:
        RemoteError: nobody answered in time.
    """
    return _now(target, timeout_s).router_settings_json


def _now(target: str, timeout_s: float) -> WatchResponse:
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        call = NodeServiceStub(channel).Watch(WatchRequest(), timeout=timeout_s)
        try:
            with replies.remote_errors():
                for now in call:
                    return now
            return WatchResponse()
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
