---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: kyb-controller
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-controller
    app.kubernetes.io/part-of: kybernate
spec:
  replicas: 2
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-controller
  strategy:
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 1
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-controller
      automountServiceAccountToken: true
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app.kubernetes.io/name: kyb-controller
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: controller
        image: '{{ include "kybernate.image" (list . "controller") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_CONTROLLER_PROBE_LISTEN
          value: 0.0.0.0:9448
        - name: KYB_CONTROLLER_LEASE
          value: kyb-controller
        - name: KYB_CONTROLLER_REGISTRY_URL
          value: https://kyb-registry.kyb-system.svc:9446
        - name: KYB_CONTROLLER_SIDECAR_IMAGE
          value: '{{ include "kybernate.image" (list . "sidecar") }}'
        ports:
        - name: probes
          containerPort: 9448
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
        - name: tls
          mountPath: /etc/kyb/tls
          readOnly: true
        - name: tmp
          mountPath: /tmp
      volumes:
      - name: tls
        secret:
          secretName: kyb-controller-tls
          defaultMode: 288
      - name: tmp
        emptyDir:
          medium: Memory
          sizeLimit: 16Mi
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: kyb-controller
  namespace: kyb-system
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-controller
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: kyb-controller
  namespace: kyb-system
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-controller
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-controller
  policyTypes:
  - Ingress
  ingress:
  - from:
    - namespaceSelector:
        matchLabels:
          kyb.ai/scrapes: 'true'
    ports:
    - port: probes
