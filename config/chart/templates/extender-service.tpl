{{- if eq .Values.extender "service" }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: kyb-extender
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-extender
    app.kubernetes.io/part-of: kybernate
spec:
  replicas: 2
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-extender
  strategy:
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 1
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-extender
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
                  app.kubernetes.io/name: kyb-extender
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: extender
        image: '{{ include "kybernate.image" (list . "extender") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: KYB_EXTENDER_LISTEN
          value: 0.0.0.0:9444
        - name: KYB_EXTENDER_PROBE_LISTEN
          value: 0.0.0.0:9445
        - name: KYB_EXTENDER_LEASE
          value: kyb-extender
        - name: KYB_EXTENDER_ADVERTISE
          value: $(KYB_POD_IP):9444
        ports:
        - name: https
          containerPort: 9444
        - name: probes
          containerPort: 9445
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
            cpu: 100m
            memory: 256Mi
          limits:
            memory: 1Gi
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
          secretName: kyb-extender-tls
          defaultMode: 288
      - name: tmp
        emptyDir:
          medium: Memory
          sizeLimit: 16Mi
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: kyb-extender
  namespace: kyb-system
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-extender
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: kyb-extender
  namespace: kyb-system
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-extender
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-extender
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
kind: Service
metadata:
  name: kyb-extender
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  ports:
  - name: https
    port: 443
    targetPort: 9444
{{- end }}
