//go:build tools

// Package kube locks the modules of the Kubernetes and etcd commands that the tests run.
// The harness builds them with `go build`; this file only keeps the requirements in go.mod.
package kube

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubectl/pkg/cmd"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
