"""Settings of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from kybernate.settings.common import Address, Level, Settings


class RegistrySettings(Settings):
    """What the registry can be told. Times are in seconds, sizes in bytes."""

    listen: Address = Field(
        "127.0.0.1:9446", description="where agents and readers call, mutual TLS (host:port)"
    )
    probe_listen: Address = Field(
        "127.0.0.1:9447", description="where probes and metrics are served, plain (host:port)"
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"), description="folder with ca.crt, registry.crt and registry.key"
    )
    database: SecretStr = Field(
        SecretStr("sqlite:////var/lib/kyb/registry/registry.db"),
        description="sqlite:////path for one replica, postgresql://user:password@host/name for "
        "several",
    )
    cluster: Literal["kubernetes", "none"] = Field(
        "kubernetes",
        description="what agents' words are held against: kubernetes, where an agent speaks only "
        "for pods of its own node; none believes every agent, for installations without Kubernetes",
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig to read pods with; none: the pod's service account"
    )
    shared_agent_keys: bool = Field(
        True,
        description="believe agents also by certificates of `kybernate pki`, whose keys other "
        "nodes may hold; turn it off once every node has its own",
    )
    signer_dir: Path | None = Field(
        None,
        description="folder with agents-ca.crt and agents-ca.key (the Secret kyb-agents-ca); with "
        "it this registry certifies agents' own keys",
    )
    agent_certificate_s: float = Field(
        86_400.0, ge=600, description="how long an agent's certificate is good for (s)"
    )
    database_s: float = Field(
        5.0, gt=0, le=60, description="limit for one statement, and for the wait for a lock (s)"
    )
    max_lease_s: float = Field(
        600.0, ge=1, description="longest time that a writer's lease is granted for (s)"
    )
    kms: Literal["files", "pkcs11"] = Field(
        "files",
        description="what wraps the namespaces' keys: files (those of wrap_keys) or pkcs11 "
        "(a token, such as an HSM)",
    )
    wrap_keys: Path = Field(
        Path("/etc/kyb/wrap-keys"),
        description="folder with wrap-N.key, also read with pkcs11: what these wrapped still opens",
    )
    pkcs11_module: Path | None = Field(
        None, description="PKCS#11 library of the token, such as /usr/lib/softhsm/libsofthsm2.so"
    )
    pkcs11_token: str = Field("", description="label of the token")
    pkcs11_pin: SecretStr = Field(SecretStr(""), description="PIN of the token's user")
    pkcs11_key: str = Field(
        "kyb-wrap", description="keys in the token are called this, a hyphen and a number"
    )
    kms_s: float = Field(5.0, gt=0, le=60, description="limit for one call of the token (s)")
    object_store: str = Field(
        "",
        description="the object store that agents get at by way of this registry, such as "
        "s3://bucket/path; its credentials come from the environment",
    )
    object_leave_s: float = Field(
        600.0, ge=120, le=3600, description="how long what is signed for an agent is good (s)"
    )
    shred_after_s: float = Field(
        7 * 86_400.0,
        ge=0,
        description="keys of a namespace that was deleted are destroyed so much later (s)",
    )
    threads: int = Field(16, ge=1, le=128, description="calls served at the same time")
    request_s: float = Field(
        10.0, gt=0, description="limit for a request to come, TLS handshake included (s)"
    )
    max_body_bytes: int = Field(256 * 1024, ge=1024, description="largest request body (bytes)")
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
