"""The kubelet's and the runtime's gRPC interfaces, against servers of their generated stubs."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from kybernate.adapters.container.cri import CriImages, command_from_info
from kybernate.adapters.container.podresources import KubeletPodResources
from kybernate.errors import NotFoundError, RetryableError
from kybernate.gen import cri_pb2, podresources_pb2
from kybernate.lib import rpc
from kybernate.ports import Holder, ImageCommand

SEAT = "kyb.ai/gpu-2x-seat"


def pod(namespace, name, container, *devices):
    return podresources_pb2.PodResources(
        name=name,
        namespace=namespace,
        containers=[
            podresources_pb2.ContainerResources(name="sidecar"),
            podresources_pb2.ContainerResources(
                name=container,
                devices=[
                    podresources_pb2.ContainerDevices(resource_name=resource, device_ids=ids)
                    for resource, ids in devices
                ],
            ),
        ],
    )


class Kubelet:
    async def List(self, request, context):  # noqa: N802
        return podresources_pb2.ListPodResourcesResponse(
            pod_resources=[
                pod("a", "p1", "main", (SEAT, ["G01-seat-1"]), ("example.com/nic", ["n1"])),
                pod("b", "p2", "main", (SEAT, ["G01-seat-2"]), (SEAT, ["G23-seat-1"])),
            ]
        )


class Runtime:
    async def Version(self, request, context):  # noqa: N802
        return cri_pb2.VersionResponse(runtime_name="containerd", runtime_version="2.1.9")

    async def ListPodSandbox(self, request, context):  # noqa: N802
        assert request.filter.state.state == cri_pb2.SANDBOX_READY
        labels = dict(request.filter.label_selector)
        assert set(labels) == {"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"}
        uids = {"web-0": ["u1", "u2"]}.get(labels["io.kubernetes.pod.name"], [])
        items = [cri_pb2.PodSandbox(metadata=cri_pb2.PodSandboxMetadata(uid=uid)) for uid in uids]
        return cri_pb2.ListPodSandboxResponse(items=items)

    async def ListContainers(self, request, context):  # noqa: N802
        assert request.filter.state.state == cri_pb2.CONTAINER_RUNNING
        labels = dict(request.filter.label_selector)
        assert labels.pop("io.kubernetes.container.name") == "server"
        refs = {"u1": ["sha256:1"], "u2": ["sha256:1", "sha256:2"]}.get(labels.popitem()[1], [])
        containers = [cri_pb2.Container(image_ref=ref) for ref in refs]
        return cri_pb2.ListContainersResponse(containers=containers)

    async def ImageStatus(self, request, context):  # noqa: N802
        if request.image.image != "model:1":
            return cri_pb2.ImageStatusResponse()
        config = {"Entrypoint": ["/bin/server", "-x"], "Cmd": ["--port", "80"]}
        info = {"chainID": "sha256:0", "imageSpec": {"config": config}}
        return cri_pb2.ImageStatusResponse(
            image=cri_pb2.Image(id="sha256:1"),
            info={"info": json.dumps(info)} if request.verbose else {},
        )


def ask(socket, adapter_type, question):
    """Serve, ask, stop."""

    async def main():
        server = grpc.aio.server()
        rpc.serve(server, podresources_pb2.DESCRIPTOR, "PodResourcesLister", Kubelet())
        rpc.serve(server, cri_pb2.DESCRIPTOR, "ImageService", Runtime())
        rpc.serve(server, cri_pb2.DESCRIPTOR, "RuntimeService", Runtime())
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        adapter = adapter_type(socket)
        try:
            return await question(adapter)
        finally:
            await adapter.close()
            await server.stop(None)

    return asyncio.run(main())


@pytest.fixture
def socket(tmp_path):
    return tmp_path / "s.sock"


def test_the_holder_of_a_device_is_found(socket):
    holder = ask(socket, KubeletPodResources, lambda api: api.holder(SEAT, ["G01-seat-1"]))
    assert holder == Holder("a", "p1", "main")


def test_devices_listed_per_numa_node_belong_together(socket):
    ids = ["G23-seat-1", "G01-seat-2"]
    assert ask(socket, KubeletPodResources, lambda api: api.holder(SEAT, ids)).pod == "p2"


@pytest.mark.parametrize(
    ("resource", "ids"),
    [(SEAT, ["G01-seat-9"]), (SEAT, ["G01-seat-2"]), ("kyb.ai/gpu-1x-seat", ["G01-seat-1"])],
)
def test_a_device_that_nobody_holds_exactly_is_not_found(socket, resource, ids):
    with pytest.raises(NotFoundError, match=ids[0]):
        ask(socket, KubeletPodResources, lambda api: api.holder(resource, ids))


def test_only_seats_count_as_held(socket):
    held = ask(socket, KubeletPodResources, lambda api: api.held())
    assert {name: holder.pod for name, holder in held.items()} == {
        "G01-seat-1": "p1",
        "G01-seat-2": "p2",
        "G23-seat-1": "p2",
    }


def test_the_images_command_comes_from_the_runtime(socket):
    command = ask(socket, CriImages, lambda api: api.command_of("model:1"))
    assert command == ImageCommand(("/bin/server", "-x"), ("--port", "80"))
    assert ask(socket, CriImages, lambda api: api.version()) == "containerd 2.1.9"


def test_the_runtime_knows_which_pods_of_a_name_run(socket):
    assert ask(socket, CriImages, lambda api: api.sandboxes("a", "web-0")) == {"u1", "u2"}
    assert ask(socket, CriImages, lambda api: api.sandboxes("a", "other")) == frozenset()


def test_an_image_that_is_not_there_is_not_found(socket):
    with pytest.raises(NotFoundError, match="model:2"):
        ask(socket, CriImages, lambda api: api.command_of("model:2"))


def test_an_image_may_have_no_entrypoint():
    info = json.dumps({"imageSpec": {"config": {"Cmd": ["sh"], "Entrypoint": None}}})
    assert command_from_info("x", info) == ImageCommand((), ("sh",))
    assert command_from_info("x", '{"imageSpec": {"config": {}}}') == ImageCommand((), ())


@pytest.mark.parametrize(
    "info", ["", "{}", "[]", '{"imageSpec": null}', '{"imageSpec": {"config": 1}}']
)
def test_a_runtime_that_tells_nothing_is_reported(info):
    with pytest.raises(RetryableError, match="name the command in the pod"):
        command_from_info("x", info)


@pytest.mark.parametrize(
    ("adapter_type", "question"),
    [
        (KubeletPodResources, lambda api: api.held()),
        (CriImages, lambda api: api.command_of("x")),
        (CriImages, lambda api: api.version()),
        (CriImages, lambda api: api.sandboxes("a", "web-0")),
    ],
)
def test_no_answer_is_worth_another_try(socket, adapter_type, question):
    async def main():
        adapter = adapter_type(socket)
        try:
            await question(adapter)
        finally:
            await adapter.close()

    with pytest.raises(RetryableError, match=str(socket)):
        asyncio.run(main())


def test_the_runtime_tells_which_image_a_container_runs(tmp_path):
    digest = ask(tmp_path / "sock", CriImages, lambda one: one.digest_of("u1", "server"))
    assert digest == "sha256:1"
    for uid in ("u2", "u3"):
        with pytest.raises(NotFoundError, match="no one container"):
            ask(tmp_path / f"sock-{uid}", CriImages, lambda one, u=uid: one.digest_of(u, "server"))
