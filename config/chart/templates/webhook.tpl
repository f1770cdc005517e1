---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: kyb-webhook
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-webhook
    app.kubernetes.io/part-of: kybernate
spec:
  replicas: 2
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-webhook
  strategy:
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-webhook
      automountServiceAccountToken: true
      priorityClassName: system-cluster-critical
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app.kubernetes.io/name: kyb-webhook
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: webhook
        image: '{{ include "kybernate.image" (list . "webhook") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_WEBHOOK_LISTEN
          value: 0.0.0.0:8443
        - name: KYB_WEBHOOK_PROBE_LISTEN
          value: 0.0.0.0:8081
        - name: KYB_WEBHOOK_SIDECAR_IMAGE
          value: '{{ include "kybernate.image" (list . "sidecar") }}'
        ports:
        - name: https
          containerPort: 8443
        - name: probes
          containerPort: 8081
        startupProbe:
          httpGet:
            path: /healthz
            port: probes
          periodSeconds: 1
          failureThreshold: 60
        livenessProbe:
          httpGet:
            path: /healthz
            port: probes
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet:
            path: /readyz
            port: probes
          periodSeconds: 2
          timeoutSeconds: 2
        lifecycle:
          preStop:
            sleep:
              seconds: 5
        resources:
          requests:
            cpu: 50m
            memory: 128Mi
          limits:
            memory: 512Mi
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
        volumeMounts:
        - name: tmp
          mountPath: /tmp
      volumes:
      - name: tmp
        emptyDir:
          medium: Memory
          sizeLimit: 16Mi
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: kyb-webhook
  namespace: kyb-system
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-webhook
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: kyb-webhook
  labels:
    app.kubernetes.io/part-of: kybernate
webhooks:
- name: mutate.pods.kyb.ai
  admissionReviewVersions:
  - v1
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 5
  reinvocationPolicy: IfNeeded
  clientConfig:
    service:
      name: kyb-webhook
      namespace: kyb-system
      path: /mutate
      port: 443
  namespaceSelector:
    matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values:
      - kube-system
      - kyb-system
  rules:
  - apiGroups:
    - ''
    apiVersions:
    - v1
    operations:
    - CREATE
    resources:
    - pods
    scope: Namespaced
  - apiGroups:
    - ''
    apiVersions:
    - v1
    operations:
    - UPDATE
    resources:
    - pods/ephemeralcontainers
    scope: Namespaced
  matchConditions:
  - name: asks-for-a-seat
    expression: object.metadata.?labels[?'kyb.ai/managed'].orValue('') == 'true' || 'kyb.ai/gpus' in object.metadata.?annotations.orValue({}) || (object.spec.containers
      + object.spec.?initContainers.orValue([])).exists(c, c.?resources.?limits.orValue({}).exists(r, r.startsWith('kyb.ai/')) || c.?resources.?requests.orValue({}).exists(r,
      r.startsWith('kyb.ai/')))
- name: sign.requests.kyb.ai
  admissionReviewVersions:
  - v1
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 5
  clientConfig:
    service:
      name: kyb-webhook
      namespace: kyb-system
      path: /sign
      port: 443
  rules:
  - apiGroups:
    - kyb.ai
    apiVersions:
    - v1alpha1
    operations:
    - CREATE
    resources:
    - checkpointrequests
    - rebalancerequests
    - restorerequests
    scope: Namespaced
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-webhook
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-webhook
  policyTypes:
  - Ingress
  ingress:
  - ports:
    - port: https
  - from:
    - namespaceSelector:
        matchLabels:
          kyb.ai/scrapes: 'true'
    ports:
    - port: probes
---
apiVersion: v1
kind: Secret
metadata:
  name: kyb-webhook-tls
  namespace: kyb-system
type: Opaque
---
apiVersion: v1
kind: Service
metadata:
  name: kyb-webhook
  namespace: kyb-system
spec:
  selector:
    app.kubernetes.io/name: kyb-webhook
  ports:
  - name: https
    port: 443
    targetPort: https
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: kyb-webhook
  labels:
    app.kubernetes.io/part-of: kybernate
webhooks:
- name: validate.pods.kyb.ai
  admissionReviewVersions:
  - v1
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 5
  clientConfig:
    service:
      name: kyb-webhook
      namespace: kyb-system
      path: /validate
      port: 443
  namespaceSelector:
    matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values:
      - kube-system
      - kyb-system
  rules:
  - apiGroups:
    - ''
    apiVersions:
    - v1
    operations:
    - CREATE
    resources:
    - pods
    scope: Namespaced
  matchConditions:
  - name: asks-for-a-seat
    expression: object.metadata.?labels[?'kyb.ai/managed'].orValue('') == 'true' || 'kyb.ai/gpus' in object.metadata.?annotations.orValue({}) || (object.spec.containers
      + object.spec.?initContainers.orValue([])).exists(c, c.?resources.?limits.orValue({}).exists(r, r.startsWith('kyb.ai/')) || c.?resources.?requests.orValue({}).exists(r,
      r.startsWith('kyb.ai/')))
- name: evict.pods.kyb.ai
  admissionReviewVersions:
  - v1
  sideEffects: NoneOnDryRun
  failurePolicy: Ignore
  timeoutSeconds: 2
  clientConfig:
    service:
      name: kyb-webhook
      namespace: kyb-system
      path: /evict
      port: 443
  namespaceSelector:
    matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values:
      - kube-system
      - kyb-system
  rules:
  - apiGroups:
    - ''
    apiVersions:
    - v1
    operations:
    - CREATE
    resources:
    - pods/eviction
    scope: Namespaced
