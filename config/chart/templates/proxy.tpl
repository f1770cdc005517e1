---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: kyb-proxy
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-proxy
    app.kubernetes.io/part-of: kybernate
spec:
  replicas: 3
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-proxy
  strategy:
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-proxy
      automountServiceAccountToken: true
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app.kubernetes.io/name: kyb-proxy
      terminationGracePeriodSeconds: 45
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: proxy
        image: '{{ include "kybernate.image" (list . "proxy") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_PROXY_LISTEN
          value: 0.0.0.0:8080
        - name: KYB_PROXY_AUTH
          value: keys
        - name: KYB_PROXY_REGISTRY_URL
          value: https://kyb-registry.kyb-system.svc:9446
        ports:
        - name: http
          containerPort: 8080
        lifecycle:
          preStop:
            sleep:
              seconds: 5
        startupProbe:
          httpGet:
            path: /healthz
            port: http
          periodSeconds: 1
          failureThreshold: 60
        livenessProbe:
          httpGet:
            path: /healthz
            port: http
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet:
            path: /readyz
            port: http
          periodSeconds: 2
          timeoutSeconds: 2
        resources:
          requests:
            cpu: 100m
            memory: 128Mi
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
        - name: clients
          mountPath: /etc/kyb/clients
          readOnly: true
      volumes:
      - name: tls
        secret:
          secretName: kyb-proxy-tls
          defaultMode: 288
      - name: clients
        secret:
          secretName: kyb-proxy-clients
          defaultMode: 288
          optional: true
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: kyb-proxy
  namespace: kyb-system
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-proxy
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-proxy
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-proxy
  policyTypes:
  - Ingress
  ingress:
  - ports:
    - port: http
---
apiVersion: v1
kind: Service
metadata:
  name: kyb-proxy
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    app.kubernetes.io/name: kyb-proxy
  ports:
  - name: http
    port: 80
    targetPort: http
