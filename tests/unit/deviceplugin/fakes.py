"""The other ends of the plugin: a kubelet's side and an agent's side over real Unix sockets."""

# ruff: noqa: N802 - the names of the gRPC methods

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from prometheus_client import REGISTRY

from kybernate.core.doctor.health import Checkup, EventKind, GpuEvent
from kybernate.errors import DriverError
from kybernate.gen import agent_pb2, deviceplugin_pb2
from kybernate.lib import rpc
from kybernate.types import Gpu, GpuUuid

pb = deviceplugin_pb2
ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"


def until(condition, limit=60.0):
    """Wait for other threads until `condition()` is true, and return what it returned."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, "it didn't happen in time"
        time.sleep(0.01)
    return value


class Kubelet:
    """Registers as a kubelet does: dials back, asks for the options, answers, then lists."""

    def __init__(self, folder):
        self.folder = folder
        self.calls = []
        self.lists = {}
        self.versions = {}
        self.ignore_lists = 0
        self.refuse = 0
        self._channels = {}
        self._streams = {}
        self.start()

    def start(self):
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        self._server = grpc.server(ThreadPoolExecutor(8))
        rpc.serve(self._server, deviceplugin_pb2.DESCRIPTOR, "Registration", self)
        self._server.add_insecure_port(f"unix:{self.folder}/kubelet.sock")
        self._server.start()

    def stop(self):
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._streams.clear()
        self.lists.clear()
        self._server.stop(None).wait()

    def restart(self):
        self.stop()
        self.start()

    def Register(self, request, context):
        self.calls.append(("Register", request.resource_name))
        if self.refuse:
            self.refuse -= 1
            context.abort(grpc.StatusCode.INTERNAL, "not today")
        channel = grpc.insecure_channel(f"unix:{self.folder}/{request.endpoint}")
        stub = rpc.Stub(channel, deviceplugin_pb2.DESCRIPTOR, "DevicePlugin")
        options = stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
        assert options.pre_start_required
        assert options.get_preferred_allocation_available
        self.versions[request.resource_name] = request.version
        self.calls.append(("Options", request.resource_name))
        self._channels[request.resource_name] = channel
        if self.ignore_lists:
            self.ignore_lists -= 1
        else:
            threading.Thread(target=self._list, args=(request.resource_name, stub)).start()
        return pb.Empty()

    def _list(self, resource, stub):
        try:
            stream = stub.ListAndWatch(pb.Empty())
        except ValueError:  # this kubelet was stopped meanwhile, and its channels with it
            return
        self._streams[resource] = stream
        self.calls.append(("List", resource))
        try:
            for answer in stream:
                if self._streams.get(resource) is stream:
                    self.lists[resource] = {one.ID: one.health for one in answer.devices}
        except (grpc.RpcError, ValueError):
            # The end of an older stream may be heard of after a newer one's list.
            if self._streams.get(resource) is stream:
                self.lists.pop(resource, None)

    def drop(self, resource):
        """End the stream, as a late end of an older registration makes a kubelet do."""
        self.lists.pop(resource, None)
        self._streams[resource].cancel()

    def plugin(self, resource):
        return rpc.Stub(self._channels[resource], deviceplugin_pb2.DESCRIPTOR, "DevicePlugin")


class Agent:
    """Answers what it is told to."""

    def __init__(self, socket):
        self.socket = socket
        self.reports = []
        self.groups = []
        self.prepared = []
        self.answers = []
        self.unlisted = None
        self.holdings = agent_pb2.Holdings(park_budget_bytes=1 << 50)
        self._server = None

    def start(self):
        self._server = grpc.server(ThreadPoolExecutor(8))
        rpc.serve(self._server, agent_pb2.DESCRIPTOR, "NodeAgent", self)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self):
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def ReportInventory(self, request, context):
        self.reports.append(request)
        return agent_pb2.ReportInventoryResponse()

    def Attend(self, request_iterator, context):
        try:
            for attendance in request_iterator:
                self.unlisted = tuple(attendance.unlisted)
        finally:
            self.unlisted = None
        return agent_pb2.AttendResponse()

    def hold(self, *seats, budget=1 << 50, vram=0):
        """Seats that pods hold, as (device ID, group)."""
        self.holdings = agent_pb2.Holdings(
            park_budget_bytes=budget,
            seats=[agent_pb2.HeldSeat(device_id=i, group=g, vram_bytes=vram) for i, g in seats],
        )

    def WatchHoldings(self, request, context):
        sent = None
        while context.is_active():
            if self.holdings != sent:
                sent = self.holdings
                yield sent
            time.sleep(0.01)

    def AwaitedGroups(self, request, context):
        return agent_pb2.AwaitedGroupsResponse(groups=self.groups)

    def PrepareSeat(self, request, context):
        if self.answers:
            context.abort(*self.answers.pop(0))
        self.prepared.append((request.resource, list(request.device_ids)))
        return agent_pb2.PrepareSeatResponse(seat="G1-seat-1", group="G1")


class Driver:
    """Two GPUs that can be lost."""

    def __init__(self, count=2):
        self.present = [
            Gpu(GpuUuid(f"GPU-{at}"), at, "NVIDIA H100", 80 << 30) for at in range(count)
        ]
        self.broken = False
        self.found = {}
        self.pairs = {}
        self.reloads = 0
        self.stale = False
        self._events = queue.SimpleQueue()

    def devices(self):
        if self.broken or self.stale:
            raise DriverError("nvmlInit", 9, "DRIVER_NOT_LOADED")
        return list(self.present)

    def links(self):
        return self.pairs

    def checkup(self, gpu):
        if self.broken or self.stale or gpu not in {one.uuid for one in self.present}:
            return Checkup(gone="nvmlDeviceGetMemoryInfo failed: GPU is lost (15)")
        return self.found.get(gpu, Checkup())

    def reload(self):
        self.reloads += 1
        if self.broken:
            raise DriverError("nvmlInit", 9, "DRIVER_NOT_LOADED")
        self.stale = False

    def xid(self, gpu, number):
        self._events.put(GpuEvent(GpuUuid(gpu), EventKind.XID, number))

    def watch(self, tell, stop):
        while not stop.is_set():
            with contextlib.suppress(queue.Empty):
                tell(self._events.get(timeout=0.02))

    def driver_versions(self):
        return "580.1", "13.0"


def listed(kubelet):
    """Wait until it lists both resources, and return the states of their seats."""
    return until(lambda: set(kubelet.lists) == {ONE, TWO} and kubelet.lists)


def sample(name, **labels):
    """What the plugin's metric says, or None."""
    return REGISTRY.get_sample_value(name, labels)


def allocated(kubelet, resource, *ids):
    """The CDI devices that a container with these seats gets."""
    request = pb.AllocateRequest()
    request.container_requests.add(devices_ids=ids)
    answer = kubelet.plugin(resource).Allocate(request, timeout=60)
    return [one.name for one in answer.container_responses[0].cdi_devices]


def start(kubelet, resource, *ids):
    """Have a container with these seats start."""
    return kubelet.plugin(resource).PreStartContainer(
        pb.PreStartContainerRequest(devices_ids=ids), timeout=60
    )
