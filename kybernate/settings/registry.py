"""Settings of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from kybernate.settings.common import Address, Level, Settings


class RegistrySettings(Settings):
    """What the registry can be told. Times are in seconds, sizes in bytes."""

    listen: Address = Field(
        "127.0.0.1:9446",
        description="Address that agents and readers call, mutual TLS (host:port).",
    )
    probe_listen: Address = Field(
        "127.0.0.1:9447", description="Address of probes and metrics, plain HTTP (host:port)."
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"), description="Folder with ca.crt, registry.crt and registry.key."
    )
    database: SecretStr = Field(
        SecretStr("sqlite:////var/lib/kyb/registry/registry.db"),
        description="sqlite:////path for one replica; postgresql://user:password@host/name for "
        "several.",
    )
    cluster: Literal["kubernetes", "none"] = Field(
        "kubernetes",
        description="Against what the registry checks what agents say. kubernetes: an agent may "
        "speak only for pods of its own node; none: the registry believes every agent, for "
        "installations without Kubernetes.",
    )
    kubeconfig: Path | None = Field(
        None,
        description="kubeconfig file to read pods with; without it, the pod's service account.",
    )
    shared_agent_keys: bool = Field(
        True,
        description="Accept agents' certificates that `kybernate pki` made, too, whose keys other "
        "nodes may hold. Turn it off once every node has a key of its own.",
    )
    signer_dir: Path | None = Field(
        None,
        description="Folder with agents-ca.crt and agents-ca.key, the Secret kyb-agents-ca; with "
        "it, this registry certifies agents' own keys.",
    )
    agent_certificate_s: float = Field(
        86_400.0, ge=600, description="How long an agent's certificate is valid (s)."
    )
    database_s: float = Field(
        5.0, gt=0, le=60, description="Deadline of one statement, and of the wait for a lock (s)."
    )
    max_lease_s: float = Field(
        600.0, ge=1, description="Longest time for which a writer gets a lease (s)."
    )
    kms: Literal["files", "pkcs11"] = Field(
        "files",
        description="What wraps the namespaces' keys. files: the keys in `wrap_keys`; pkcs11: a "
        "token, such as an HSM.",
    )
    wrap_keys: Path = Field(
        Path("/etc/kyb/wrap-keys"),
        description="Folder with wrap-N.key; read with pkcs11, too, so that what these keys have "
        "wrapped still opens.",
    )
    pkcs11_module: Path | None = Field(
        None, description="PKCS#11 library of the token, such as /usr/lib/softhsm/libsofthsm2.so."
    )
    pkcs11_token: str = Field("", description="Label of the token.")
    pkcs11_pin: SecretStr = Field(SecretStr(""), description="PIN of the token's user.")
    pkcs11_key: str = Field(
        "kyb-wrap", description="Keys in the token have this name, a hyphen and a number."
    )
    kms_s: float = Field(5.0, gt=0, le=60, description="Deadline of one call to the token (s).")
    object_store: str = Field(
        "",
        description="Object store that agents reach through this registry, such as "
        "s3://bucket/path; its credentials come from the environment.",
    )
    object_leave_s: float = Field(
        600.0,
        ge=120,
        le=3600,
        description="How long a request that the registry has signed for an agent is valid (s).",
    )
    shred_after_s: float = Field(
        7 * 86_400.0,
        ge=0,
        description="The registry destroys the keys of a deleted namespace after this time (s).",
    )
    threads: int = Field(16, ge=1, le=128, description="Calls that the registry serves at once.")
    request_s: float = Field(
        10.0, gt=0, description="Deadline for a request to arrive, TLS handshake included (s)."
    )
    max_body_bytes: int = Field(256 * 1024, ge=1024, description="Largest request body (bytes).")
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )
