"""Every name that Kybernate puts into Kubernetes objects or container environments, once."""

from __future__ import annotations

from functools import lru_cache

GROUP = "kyb.ai"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
GPU_NODE_KIND = "GPUNode"
GPU_NODES_PATH = f"/apis/{GROUP}/{VERSION}/gpunodes"
ARTIFACT_GRANT_KIND = "ArtifactGrant"
ARTIFACT_GRANTS_PATH = f"/apis/{GROUP}/{VERSION}/artifactgrants"
ARTIFACT_KIND = "Artifact"
ARTIFACTS_PATH = f"/apis/{GROUP}/{VERSION}/artifacts"
CHECKPOINT_REQUEST_KIND = "CheckpointRequest"
CHECKPOINT_REQUESTS_PATH = f"/apis/{GROUP}/{VERSION}/checkpointrequests"
RESTORE_REQUEST_KIND = "RestoreRequest"
RESTORE_REQUESTS_PATH = f"/apis/{GROUP}/{VERSION}/restorerequests"
CHECKPOINT_POLICY_KIND = "CheckpointPolicy"
CHECKPOINT_POLICIES_PATH = f"/apis/{GROUP}/{VERSION}/checkpointpolicies"
SNAPSHOT_TEMPLATE_KIND = "SnapshotTemplate"
SNAPSHOT_TEMPLATES_PATH = f"/apis/{GROUP}/{VERSION}/snapshottemplates"
REBALANCE_REQUEST_KIND = "RebalanceRequest"
REBALANCE_REQUESTS_PATH = f"/apis/{GROUP}/{VERSION}/rebalancerequests"
TIER_PLACEMENT_KIND = "TierPlacement"
TIER_PLACEMENTS_PATH = f"/apis/{GROUP}/{VERSION}/tierplacements"
SHARE_KIND = "Share"
SHARES_PATH = f"/apis/{GROUP}/{VERSION}/shares"
SCHEDULER_NAME = "kybernate-scheduler"
NAMESPACE = "kyb-system"
CONTROLLER_USER = f"system:serviceaccount:{NAMESPACE}:kyb-controller"
WEBHOOK_USER = f"system:serviceaccount:{NAMESPACE}:kyb-webhook"
PROXY_CLIENTS = "kyb-proxy-clients"  # the Secret with the records of the proxy's clients

# Resources: kyb.ai/gpu-<n>x-seat
RESOURCE_PREFIX = "kyb.ai/gpu-"
RESOURCE_SUFFIX = "x-seat"
VENDOR_RESOURCE = "nvidia.com/gpu"
GPUS_ANNOTATION = "kyb.ai/gpus"

# Opt-in label
MANAGED_LABEL = "kyb.ai/managed"

# Labels of an Artifact: the end of its name, its pod, what made that pod, the deepest tier that has
# it, and the CheckpointPolicy that had it made
MOMENT_LABEL = "kyb.ai/moment"
OF_POD_LABEL = "kyb.ai/pod"
OF_OWNER_LABEL = "kyb.ai/owner"
TIER_LABEL = "kyb.ai/tier"
OF_POLICY_LABEL = "kyb.ai/checkpoint-policy"

# Node label: the node's GPUs belong to Kybernate, not to the vendor's device plugin
GPU_NODE_LABEL = "kyb.ai/gpu-node"

# Annotations that a user may set
MODEL = "kyb.ai/model"
VRAM = "kyb.ai/vram"
PREFER_GROUP = "kyb.ai/prefer-group"
SHORT_PREFER_GROUP = "prefer-group"
REQUIRE_GROUP = "kyb.ai/require-group"
GPU_PRODUCT = "kyb.ai/gpu-product"
GPU_TOPOLOGY = "nvidia.com/gpu-topology"
POLICY = "kyb.ai/policy"
READY_WITHIN = "kyb.ai/ready-within"
READY_WHILE = "kyb.ai/ready-while"
PARK_TIER = "kyb.ai/park-tier"
TURN = "kyb.ai/turn"
IDLE = "kyb.ai/idle"
MIN_RESIDENCY = "kyb.ai/min-residency"
MAX_WAIT = "kyb.ai/max-wait"
PREFETCH = "kyb.ai/prefetch"
PRIORITY = "kyb.ai/priority"
COOPERATE = "kyb.ai/cooperate"
ON_PREEMPT = "kyb.ai/on-preempt"
CONNECTIONS = "kyb.ai/connections"
NCCL = "kyb.ai/nccl"
RESTORE_FROM = "kyb.ai/restore-from"
RESTORE_AS = "kyb.ai/restore-as"
RESTORE_ELSE = "kyb.ai/restore-else"
CLONE_STOPPED = "kyb.ai/clone-stopped"
PRIORITY_HINTS = (PREFER_GROUP, REQUIRE_GROUP)
GANG = "kyb.ai/gang"
GANG_SIZE = "kyb.ai/gang-size"

# On a CheckpointRequest: the UID of the pod that continues from what it evicted; on those of a
# Deployment that is scaled to zero: the label, and since when somebody waits for it
SUCCESSOR = "kyb.ai/successor"
ZERO_LABEL = "kyb.ai/scaled-to-zero"
WANTED = "kyb.ai/wanted"

# On a request: why somebody makes it, for people
WHY = "kyb.ai/why"

# On a pod that the controller has made: name and UID of the RestoreRequest that it is made for
MADE_FOR = "kyb.ai/restored-for"

# The scheduling gate that holds a gang's pods until all of them have a seat
GANG_GATE = "kyb.ai/gang"

# All of them; others of our group are taken for slips of the pen
USER_ANNOTATIONS = (
    *(MODEL, VRAM, GPUS_ANNOTATION, PREFER_GROUP, REQUIRE_GROUP, GPU_PRODUCT, POLICY, READY_WITHIN),
    *(READY_WHILE, TURN, IDLE, MIN_RESIDENCY, MAX_WAIT, PREFETCH, PRIORITY),
    *(PARK_TIER, COOPERATE, ON_PREEMPT, CONNECTIONS, NCCL, GANG, GANG_SIZE),
    *(RESTORE_FROM, RESTORE_AS, RESTORE_ELSE, CLONE_STOPPED),
)

# Annotations that only the system sets; a ValidatingAdmissionPolicy keeps them
ASSIGNED_GROUP = "kyb.ai/group"
ASSIGNED_AT = "kyb.ai/assigned-at"
RESTORE_CLAIM = "kyb.ai/restore-claim"
SEAT = "kyb.ai/seat"
TOUCHED = "kyb.ai/touched-at"
GANG_PLAN = "kyb.ai/gang-plan"
REQUESTS = "kyb.ai/requests"
SYSTEM_ANNOTATIONS = (
    *(ASSIGNED_GROUP, ASSIGNED_AT, RESTORE_CLAIM, SEAT, TOUCHED, GANG_PLAN),
    REQUESTS,
)

# Written by the webhook into the pod so that a second pass computes from the original
ORIGINAL_RESOURCES = "kyb.ai/original-resources"

# Pod conditions
WAKEABLE_CONDITION = "kyb.ai/wakeable"
REPLACE_CONDITION = "kyb.ai/replace"

# Container environment
ENV_GROUP = "KYB_GPU_GROUP"
ENV_SEAT = "KYB_GPU_SEAT"
ENV_INDICES = "KYB_GPU_INDICES"
ENV_GENERATION = "KYB_SEAT_GEN"
ENV_CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
ENV_NVIDIA_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_GPUS = "void"
"""The value of ENV_NVIDIA_VISIBLE with which the vendor's runtime leaves a container as it is."""
SYSTEM_ENV = (
    ENV_GROUP,
    ENV_SEAT,
    ENV_INDICES,
    ENV_GENERATION,
    ENV_CUDA_VISIBLE,
    ENV_NVIDIA_VISIBLE,
)

# CDI
CDI_KIND = "kyb.ai/seat"
VENDOR_CDI_KIND = "nvidia.com/gpu"

# Paths inside a managed container, and on the node
KYB_INIT_PATH = "/kyb/kyb-init"
SEAT_SOCKET_DIR = "/run/kyb"
SEAT_SOCKET_NAME = "seat.sock"
AGENT_SOCKET = "/run/kyb/agent.sock"
# In the folder of a device ID, for runtimes without CDI
ID_SOCKETS = "seat"
ID_KYB_INIT = "kyb-init"

# The sidecar of a managed pod, and the folder that it shares with the seat's container
SIDECAR = "kyb-sidecar"
SIDECAR_FIRST_PORT = 15480
SIDECAR_SCRAPE_PORT = 15483
SIDECAR_HINTS_PORT = 15484
SCRAPE = "prometheus.io/scrape"
SCRAPE_PORT = "prometheus.io/port"
POD_VOLUME = "kyb-pod"
POD_SOCKET_DIR = "/kyb-pod"

# Names that certificates of the kyb-ca carry
CN_PROXY = "kyb-proxy"
CN_SCHEDULER = "kyb-scheduler"
CN_EXTENDER = "kyb-extender"
CN_CONTROLLER = "kyb-controller"
CN_REGISTRY = "kyb-registry"
CN_AGENTS = "kyb-agents-ca"
"""The authority that certifies agents, and nobody else."""
AGENT_SIGNER = f"{GROUP}/agent"
"""The signer of CertificateSigningRequests of agents."""
AGENT_ACCOUNT = "kyb-agent"
NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"  # noqa: S105 - the name of a field
"""Under this Kubernetes says on which node the pod of a token runs."""
REVOKED_NODES = "kyb-revoked-nodes"
"""The ConfigMap of nodes whose agents' certificates count no more."""
AGENT_DOMAIN = f"agent.{GROUP}"
_AGENT_SUFFIX = f".{AGENT_DOMAIN}"


# No node has as many GPUs; and int() refuses texts of thousands of digits.
_MOST_DIGITS = 4


def agent_server_name(node: str) -> str:
    """The DNS name that the certificate of a node's agent carries."""
    return f"{node}{_AGENT_SUFFIX}"


def agent_node(name: str) -> str | None:
    """The node of whose agent a certificate carries this DNS name, or None if it is no agent's."""
    node = name.removesuffix(_AGENT_SUFFIX)
    return node if node and node != name else None


def seat_resource(gpus: int) -> str:
    """The resource of a seat on a group of `gpus` GPUs."""
    return f"{RESOURCE_PREFIX}{gpus}{RESOURCE_SUFFIX}"


@lru_cache(1024)
def seat_resource_size(resource: str) -> int | None:
    """How many GPUs a seat of this resource has, or None if it isn't a seat resource."""
    if not (resource.startswith(RESOURCE_PREFIX) and resource.endswith(RESOURCE_SUFFIX)):
        return None
    digits = resource[len(RESOURCE_PREFIX) : -len(RESOURCE_SUFFIX)]
    if not digits.isascii() or not digits.isdigit() or digits.startswith("0"):
        return None
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def seat_name(group: str, number: int) -> str:
    """The device ID of a group's seat, numbered from 1."""
    return f"{group}-seat-{number}"
