{{- if .Values.createNamespace }}
---
apiVersion: v1
kind: Namespace
metadata:
  name: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
    pod-security.kubernetes.io/enforce: privileged
  annotations:
    helm.sh/resource-policy: keep
{{- end }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-agent
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-agent
rules:
- apiGroups:
  - ''
  resources:
  - pods
  verbs:
  - get
  - list
  - watch
  - patch
- apiGroups:
  - ''
  resources:
  - pods/status
  verbs:
  - patch
- apiGroups:
  - ''
  resources:
  - pods/resize
  verbs:
  - patch
- apiGroups:
  - ''
  resources:
  - events
  verbs:
  - create
  - patch
- apiGroups:
  - ''
  resources:
  - nodes
  verbs:
  - get
- apiGroups:
  - ''
  resources:
  - namespaces
  verbs:
  - get
- apiGroups:
  - kyb.ai
  resources:
  - gpunodes
  verbs:
  - create
  - get
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - gpunodes/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - artifactgrants
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointpolicies
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - shares
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - snapshottemplates
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - tierplacements
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - certificates.k8s.io
  resources:
  - certificatesigningrequests
  verbs:
  - create
  - get
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-agent
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-agent
subjects:
- kind: ServiceAccount
  name: kyb-agent
  namespace: kyb-system
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-controller
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-controller
rules:
- apiGroups:
  - ''
  resources:
  - pods
  verbs:
  - create
  - delete
  - get
  - list
  - watch
- apiGroups:
  - ''
  resources:
  - nodes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - ''
  resources:
  - pods/eviction
  verbs:
  - create
- apiGroups:
  - apps
  resources:
  - replicasets
  verbs:
  - get
- apiGroups:
  - apps
  resources:
  - deployments/scale
  verbs:
  - get
  - patch
- apiGroups:
  - autoscaling
  resources:
  - horizontalpodautoscalers
  verbs:
  - list
- apiGroups:
  - ''
  resources:
  - events
  verbs:
  - create
- apiGroups:
  - kyb.ai
  resources:
  - gpunodes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointpolicies
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointpolicies/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - shares
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - shares/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - artifactgrants
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - restorerequests
  verbs:
  - delete
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - restorerequests/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - artifacts
  verbs:
  - create
  - delete
  - get
  - list
  - patch
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - snapshottemplates
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - snapshottemplates/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - rebalancerequests
  verbs:
  - create
  - delete
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - rebalancerequests/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - tierplacements
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - tierplacements/status
  verbs:
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointrequests
  verbs:
  - create
  - delete
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointrequests/status
  verbs:
  - patch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-controller
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-controller
subjects:
- kind: ServiceAccount
  name: kyb-controller
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: kyb-controller
  namespace: kyb-system
rules:
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  resourceNames:
  - kyb-controller
  verbs:
  - get
  - update
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kyb-controller
  namespace: kyb-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: kyb-controller
subjects:
- kind: ServiceAccount
  name: kyb-controller
  namespace: kyb-system
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-extender
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-extender
rules:
- apiGroups:
  - ''
  resources:
  - pods
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - ''
  resources:
  - nodes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - ''
  resources:
  - pods/binding
  verbs:
  - create
- apiGroups:
  - ''
  resources:
  - pods
  verbs:
  - patch
- apiGroups:
  - ''
  resources:
  - events
  verbs:
  - create
- apiGroups:
  - kyb.ai
  resources:
  - gpunodes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointrequests
  verbs:
  - get
  - list
  - patch
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointpolicies
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-extender
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-extender
subjects:
- kind: ServiceAccount
  name: kyb-extender
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: kyb-extender
  namespace: kyb-system
rules:
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  resourceNames:
  - kyb-extender
  verbs:
  - get
  - update
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  resourceNames:
  - kybernate-scheduler
  verbs:
  - get
- apiGroups:
  - discovery.k8s.io
  resources:
  - endpointslices
  resourceNames:
  - kyb-extender
  verbs:
  - create
  - patch
- apiGroups:
  - storage.k8s.io
  resources:
  - csistoragecapacities
  resourceNames:
  - kyb-extender
  verbs:
  - create
  - patch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kyb-extender
  namespace: kyb-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: kyb-extender
subjects:
- kind: ServiceAccount
  name: kyb-extender
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-grants
  labels:
    app.kubernetes.io/part-of: kybernate
    rbac.authorization.k8s.io/aggregate-to-admin: 'true'
rules:
- apiGroups:
  - kyb.ai
  resources:
  - artifactgrants
  verbs:
  - create
  - delete
  - deletecollection
  - get
  - list
  - patch
  - update
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-grants-view
  labels:
    app.kubernetes.io/part-of: kybernate
    rbac.authorization.k8s.io/aggregate-to-view: 'true'
rules:
- apiGroups:
  - kyb.ai
  resources:
  - artifactgrants
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-view-nodes
  labels:
    app.kubernetes.io/part-of: kybernate
rules:
- apiGroups:
  - kyb.ai
  resources:
  - gpunodes
  verbs:
  - get
  - list
  - watch
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-proxy
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-proxy
rules:
- apiGroups:
  - kyb.ai
  resources:
  - gpunodes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - checkpointrequests
  verbs:
  - list
  - patch
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-proxy
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-proxy
subjects:
- kind: ServiceAccount
  name: kyb-proxy
  namespace: kyb-system
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-registry
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-registry
rules:
- apiGroups:
  - ''
  resources:
  - namespaces
  - pods
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - certificates.k8s.io
  resources:
  - certificatesigningrequests
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - certificates.k8s.io
  resources:
  - certificatesigningrequests/approval
  - certificatesigningrequests/status
  verbs:
  - update
- apiGroups:
  - certificates.k8s.io
  resources:
  - signers
  resourceNames:
  - kyb.ai/agent
  verbs:
  - approve
  - sign
- apiGroups:
  - kyb.ai
  resources:
  - artifactgrants
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - snapshottemplates
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - tierplacements
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-registry
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-registry
subjects:
- kind: ServiceAccount
  name: kyb-registry
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-requests-view
  labels:
    app.kubernetes.io/part-of: kybernate
    rbac.authorization.k8s.io/aggregate-to-view: 'true'
rules:
- apiGroups:
  - kyb.ai
  resources:
  - artifacts
  - checkpointpolicies
  - checkpointrequests
  - rebalancerequests
  - restorerequests
  - snapshottemplates
  - tierplacements
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-requests-edit
  labels:
    app.kubernetes.io/part-of: kybernate
    rbac.authorization.k8s.io/aggregate-to-edit: 'true'
rules:
- apiGroups:
  - kyb.ai
  resources:
  - checkpointpolicies
  - checkpointrequests
  - rebalancerequests
  - restorerequests
  - snapshottemplates
  - tierplacements
  verbs:
  - create
  - delete
  - deletecollection
  - get
  - list
  - patch
  - update
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - artifacts
  verbs:
  - restore
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-requests-approve
  labels:
    app.kubernetes.io/part-of: kybernate
    rbac.authorization.k8s.io/aggregate-to-admin: 'true'
rules:
- apiGroups:
  - kyb.ai
  resources:
  - rebalancerequests
  verbs:
  - approve
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-restore
  labels:
    app.kubernetes.io/part-of: kybernate
rules:
- apiGroups:
  - kyb.ai
  resources:
  - artifacts
  verbs:
  - restore
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-restore
  labels:
    app.kubernetes.io/part-of: kybernate
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-restore
subjects:
- kind: ServiceAccount
  name: kyb-controller
  namespace: kyb-system
- kind: ServiceAccount
  name: kyb-extender
  namespace: kyb-system
- kind: ServiceAccount
  name: cronjob-controller
  namespace: kube-system
- kind: ServiceAccount
  name: daemon-set-controller
  namespace: kube-system
- kind: ServiceAccount
  name: deployment-controller
  namespace: kube-system
- kind: ServiceAccount
  name: job-controller
  namespace: kube-system
- kind: ServiceAccount
  name: replicaset-controller
  namespace: kube-system
- kind: ServiceAccount
  name: replication-controller
  namespace: kube-system
- kind: ServiceAccount
  name: statefulset-controller
  namespace: kube-system
- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: system:kube-controller-manager
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: kyb-revoked-nodes
  namespace: kyb-system
rules:
- apiGroups:
  - ''
  resources:
  - configmaps
  resourceNames:
  - kyb-revoked-nodes
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kyb-revoked-nodes
  namespace: kyb-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: kyb-revoked-nodes
subjects:
- kind: ServiceAccount
  name: kyb-agent
  namespace: kyb-system
- kind: ServiceAccount
  name: kyb-controller
  namespace: kyb-system
- kind: ServiceAccount
  name: kyb-proxy
  namespace: kyb-system
- kind: ServiceAccount
  name: kyb-registry
  namespace: kyb-system
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-scheduler
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-scheduler
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:kube-scheduler
subjects:
- kind: ServiceAccount
  name: kyb-scheduler
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-scheduler-volumes
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:volume-scheduler
subjects:
- kind: ServiceAccount
  name: kyb-scheduler
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kyb-scheduler-authentication-reader
  namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: extension-apiserver-authentication-reader
subjects:
- kind: ServiceAccount
  name: kyb-scheduler
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: kyb-scheduler
  namespace: kyb-system
rules:
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  resourceNames:
  - kybernate-scheduler
  verbs:
  - get
  - update
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kyb-scheduler
  namespace: kyb-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: kyb-scheduler
subjects:
- kind: ServiceAccount
  name: kyb-scheduler
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-shares
  labels:
    app.kubernetes.io/part-of: kybernate
rules:
- apiGroups:
  - kyb.ai
  resources:
  - shares
  verbs:
  - create
  - delete
  - deletecollection
  - get
  - list
  - patch
  - update
  - watch
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-webhook
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kyb-webhook
rules:
- apiGroups:
  - admissionregistration.k8s.io
  resources:
  - mutatingwebhookconfigurations
  - validatingwebhookconfigurations
  resourceNames:
  - kyb-webhook
  verbs:
  - get
  - patch
- apiGroups:
  - kyb.ai
  resources:
  - artifactgrants
  - gpunodes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - kyb.ai
  resources:
  - restorerequests
  verbs:
  - get
- apiGroups:
  - kyb.ai
  resources:
  - checkpointrequests
  verbs:
  - create
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kyb-webhook
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: kyb-webhook
subjects:
- kind: ServiceAccount
  name: kyb-webhook
  namespace: kyb-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: kyb-webhook
  namespace: kyb-system
rules:
- apiGroups:
  - ''
  resources:
  - secrets
  resourceNames:
  - kyb-webhook-tls
  verbs:
  - get
  - patch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: kyb-webhook
  namespace: kyb-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: kyb-webhook
subjects:
- kind: ServiceAccount
  name: kyb-webhook
  namespace: kyb-system
