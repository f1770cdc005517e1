---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: artifacts.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: Artifact
    listKind: ArtifactList
    plural: artifacts
    singular: artifact
    shortNames:
    - art
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    selectableFields:
    - jsonPath: .status.pod
    - jsonPath: .status.model
    additionalPrinterColumns:
    - name: Pod
      type: string
      jsonPath: .status.pod
    - name: Tier
      type: string
      jsonPath: .metadata.labels.kyb\.ai/tier
    - name: Bytes
      type: integer
      jsonPath: .status.bytes
    - name: Taken
      type: date
      jsonPath: .status.takenAt
    - name: Node
      type: string
      priority: 1
      jsonPath: .status.copies[*].node
    - name: Model
      type: string
      priority: 1
      jsonPath: .status.model
    - name: Policy
      type: string
      priority: 1
      jsonPath: .metadata.labels.kyb\.ai/checkpoint-policy
    - name: Artifact
      type: string
      priority: 1
      jsonPath: .status.artifact
    schema:
      openAPIV3Schema:
        type: object
        description: 'What the registry knows of an artifact of this namespace; there are Artifacts of the newest ones. The controller writes an Artifact, and deletes
          it when the registry has dropped the artifact. Deleting an Artifact deletes nothing else: the controller writes it again.'
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          status:
            description: What the registry knew when the controller last looked.
            properties:
              artifact:
                description: Name of the artifact, as in kyb.ai/restore-from.
                maxLength: 400
                minLength: 1
                type: string
              pod:
                description: Name of the pod whose state the artifact is.
                maxLength: 253
                type: string
              podUID:
                maxLength: 128
                type: string
              model:
                description: The model that the pod serves.
                maxLength: 1024
                type: string
              bytes:
                description: Size of the artifact (bytes); a copy may take less.
                format: int64
                minimum: 0
                type: integer
              takenAt:
                format: date-time
                type: string
              copies:
                description: Places that hold the artifact.
                items:
                  description: A copy of it.
                  properties:
                    tier:
                      enum:
                      - nvme
                      - object
                      type: string
                    state:
                      description: 'pending: the copy is being written, or wasn''t read back yet. verified: it was read back. missing: it is lost or damaged.'
                      enum:
                      - pending
                      - verified
                      - missing
                      type: string
                    node:
                      description: 'Node that holds the copy; absent: the copy is in the object store.'
                      maxLength: 253
                      type: string
                    bytes:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - tier
                  - state
                  type: object
                maxItems: 16
                type: array
                x-kubernetes-list-type: atomic
            required:
            - artifact
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: artifactgrants.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: ArtifactGrant
    listKind: ArtifactGrantList
    plural: artifactgrants
    singular: artifactgrant
    shortNames:
    - artg
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    selectableFields:
    - jsonPath: .spec.until
    additionalPrinterColumns:
    - name: To
      type: string
      jsonPath: .spec.to
    - name: Artifacts
      type: string
      jsonPath: .spec.artifacts
    - name: Until
      type: string
      jsonPath: .spec.until
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: 'Lets pods of other namespaces start as copies of artifacts of this one: as a template or a clone, by the annotations kyb.ai/restore-from and
          kyb.ai/restore-as. An artifact holds all memory of its pod, secrets included, and the named namespaces get them. Deleting the ArtifactGrant ends it for
          pods that don''t run yet.'
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: |-
              Which artifacts of this namespace the pods of which namespaces may restore, and until when.
              Each field is required, so that a misspelled field can't grant more than was meant.
            properties:
              to:
                description: Namespaces whose pods may restore the artifacts, such as team-b.
                items:
                  maxLength: 63
                  type: string
                maxItems: 64
                minItems: 1
                type: array
                x-kubernetes-list-type: set
                x-kubernetes-validations:
                - message: 'name namespaces, such as team-b: lower-case letters, digits and -; there is no name for all of them'
                  rule: self.all(n, n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))
              artifacts:
                description: 'Names of the pods whose artifacts are granted, such as llama-0: the part between / and @ of an artifact''s name. The grant holds for
                  artifacts that there are and for those to come. "*", alone: all artifacts of this namespace.'
                items:
                  maxLength: 253
                  type: string
                maxItems: 64
                minItems: 1
                type: array
                x-kubernetes-list-type: set
                x-kubernetes-validations:
                - message: name pods, such as llama-0, without the namespace and without what follows @; or write "*" alone for all of this namespace
                  rule: (self.size() == 1 && self[0] == '*') || self.all(n, n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))
              until:
                anyOf:
                - format: date-time
                - enum:
                  - never
                description: 'When the grant ends, such as 2028-01-01T00:00:00Z; never: when the ArtifactGrant is deleted. Pods that run by then continue.'
                maxLength: 64
                type: string
            required:
            - to
            - artifacts
            - until
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: checkpointpolicies.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: CheckpointPolicy
    listKind: CheckpointPolicyList
    plural: checkpointpolicies
    singular: checkpointpolicy
    shortNames:
    - cpol
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .spec.turn.mode
    additionalPrinterColumns:
    - name: Governs
      type: integer
      jsonPath: .status.governed
    - name: Turn
      type: string
      jsonPath: .spec.turn.mode
    - name: Ready
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].reason
    - name: Snapshots
      type: integer
      priority: 1
      jsonPath: .status.snapshots.total
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Ready")].message
    - name: Precedence
      type: integer
      priority: 1
      jsonPath: .spec.precedence
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: 'Sets, for pods with seats that it selects by their labels, what their annotations leave open: who takes turns, and after how long seats leave
          a tier, also by the clock. It holds at once, for running pods too. Whoever writes it needs the right to patch pods in the namespace.'
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: |-
              Which pods the policy selects, and what holds for them unless their own annotations say
              otherwise.
            properties:
              selector:
                description: 'Labels of the pods; {}: all pods of the namespace.'
                properties:
                  matchLabels:
                    additionalProperties:
                      maxLength: 63
                      type: string
                    description: Labels that a pod must have, with these values.
                    maxProperties: 16
                    type: object
                  matchExpressions:
                    description: Further conditions on a pod's labels; all must be true.
                    items:
                      description: What is wanted of one label.
                      properties:
                        key:
                          description: The label.
                          maxLength: 317
                          minLength: 1
                          type: string
                        operator:
                          enum:
                          - In
                          - NotIn
                          - Exists
                          - DoesNotExist
                          type: string
                        values:
                          items:
                            maxLength: 63
                            type: string
                          maxItems: 64
                          type: array
                          x-kubernetes-list-type: set
                      required:
                      - key
                      - operator
                      type: object
                      x-kubernetes-validations:
                      - message: In and NotIn take values; Exists and DoesNotExist take none
                        rule: (self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)
                    maxItems: 16
                    type: array
                    x-kubernetes-list-type: atomic
                type: object
              precedence:
                description: If several policies select a pod, the one with the highest precedence governs it; among equals, the first by name.
                format: int32
                maximum: 1000000
                minimum: 0
                type: integer
              turn:
                description: When the seat wants its GPUs, in the words of the annotation kyb.ai/turn.
                properties:
                  mode:
                    description: 'on-request: the seat wakes for a request. always: the seat always wants its GPUs, and takes turns with others of this mode. auto:
                      always for pods of Jobs and for pods without a model and a port, on-request for others.'
                    enum:
                    - on-request
                    - always
                    - auto
                    type: string
                  weight:
                    description: Weight of the seat among seats of its namespace that take turns.
                    format: int32
                    maximum: 1000
                    minimum: 1
                    type: integer
                  minResidency:
                    description: A seat that has traffic keeps its GPUs for at least this long after a wake, such as 5s; at most for pod_residency_s of its agent.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  maxWait:
                    description: A seat whose requests have waited for this long comes before seats of any priority, such as 5m; never sooner than after max_wait_s
                      of its agent.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  priority:
                    description: Priority of the seat's requests among those of other seats; at most the pod's own, that of its PriorityClass.
                    format: int32
                    maximum: 1000000000
                    minimum: -1000000000
                    type: integer
                type: object
                x-kubernetes-validations:
                - message: 'a seat that waits for requests has no weight; leave weight out, or write mode: always'
                  rule: '!has(self.weight) || !has(self.mode) || self.mode != ''on-request'''
                - message: write mode, weight, minResidency, maxWait or priority
                  rule: has(self.mode) || has(self.weight) || has(self.minResidency) || has(self.maxWait) || has(self.priority)
              idle:
                description: After how long without use a seat leaves each tier, as in the annotation kyb.ai/idle.
                properties:
                  vram:
                    description: Time after which the seat leaves GPU memory for RAM, such as 10m.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  ram:
                    description: Time after which the seat leaves RAM for NVMe, such as 1h.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  nvme:
                    description: Time after which the seat leaves NVMe for the object store, such as 4h.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  object:
                    description: 'Time after which a Deployment is scaled to zero, until a request for its model comes: all its pods must have rested in the object
                      store for so long. No annotation sets this.'
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                type: object
                x-kubernetes-validations:
                - message: 'name a tier: vram, ram, nvme or object'
                  rule: has(self.vram) || has(self.ram) || has(self.nvme) || has(self.object)
              prefetch:
                description: 'When an offloaded seat is brought into RAM ahead of need, while RAM has room to spare. always; never; or a number: once so many requests
                  per hour are expected.'
                maxLength: 8
                pattern: ^(always|never|[1-9][0-9]{0,5})$
                type: string
              schedule:
                description: What holds at certain times instead. If several entries hold now, the first one counts.
                items:
                  description: What counts for a while, from certain times on.
                  properties:
                    cron:
                      description: 'When the entry begins: minute, hour, day of month, month and day of week, such as "0 8 * * 1-5".'
                      maxLength: 100
                      pattern: ^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$
                      type: string
                    duration:
                      description: How long the entry holds, such as 10h; at most 8784h.
                      maxLength: 32
                      minLength: 1
                      pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                      type: string
                    timeZone:
                      description: 'Time zone of cron, such as Europe/Berlin; absent: UTC.'
                      maxLength: 64
                      minLength: 1
                      type: string
                    turn:
                      description: When the seat wants its GPUs, in the words of the annotation kyb.ai/turn.
                      properties:
                        mode:
                          description: 'on-request: the seat wakes for a request. always: the seat always wants its GPUs, and takes turns with others of this mode.
                            auto: always for pods of Jobs and for pods without a model and a port, on-request for others.'
                          enum:
                          - on-request
                          - always
                          - auto
                          type: string
                        weight:
                          description: Weight of the seat among seats of its namespace that take turns.
                          format: int32
                          maximum: 1000
                          minimum: 1
                          type: integer
                        minResidency:
                          description: A seat that has traffic keeps its GPUs for at least this long after a wake, such as 5s; at most for pod_residency_s of its
                            agent.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        maxWait:
                          description: A seat whose requests have waited for this long comes before seats of any priority, such as 5m; never sooner than after max_wait_s
                            of its agent.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        priority:
                          description: Priority of the seat's requests among those of other seats; at most the pod's own, that of its PriorityClass.
                          format: int32
                          maximum: 1000000000
                          minimum: -1000000000
                          type: integer
                      type: object
                      x-kubernetes-validations:
                      - message: 'a seat that waits for requests has no weight; leave weight out, or write mode: always'
                        rule: '!has(self.weight) || !has(self.mode) || self.mode != ''on-request'''
                      - message: write mode, weight, minResidency, maxWait or priority
                        rule: has(self.mode) || has(self.weight) || has(self.minResidency) || has(self.maxWait) || has(self.priority)
                    idle:
                      description: After how long without use a seat leaves each tier, as in the annotation kyb.ai/idle.
                      properties:
                        vram:
                          description: Time after which the seat leaves GPU memory for RAM, such as 10m.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        ram:
                          description: Time after which the seat leaves RAM for NVMe, such as 1h.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        nvme:
                          description: Time after which the seat leaves NVMe for the object store, such as 4h.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        object:
                          description: 'Time after which a Deployment is scaled to zero, until a request for its model comes: all its pods must have rested in the
                            object store for so long. No annotation sets this.'
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                      type: object
                      x-kubernetes-validations:
                      - message: 'name a tier: vram, ram, nvme or object'
                        rule: has(self.vram) || has(self.ram) || has(self.nvme) || has(self.object)
                    prefetch:
                      description: 'When an offloaded seat is brought into RAM ahead of need, while RAM has room to spare. always; never; or a number: once so many
                        requests per hour are expected.'
                      maxLength: 8
                      pattern: ^(always|never|[1-9][0-9]{0,5})$
                      type: string
                  required:
                  - cron
                  - duration
                  type: object
                  x-kubernetes-validations:
                  - message: write turn, idle or prefetch
                    rule: has(self.turn) || has(self.idle) || has(self.prefetch)
                maxItems: 16
                type: array
                x-kubernetes-list-type: atomic
              snapshots:
                description: Regular snapshots of each pod while it runs.
                properties:
                  every:
                    description: Interval between two snapshots of a pod, from 1m to 168h. Each pod has its own moments within it.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  to:
                    description: 'Tier of the snapshots; absent: the deepest tier that the node has and kyb.ai/park-tier allows.'
                    enum:
                    - nvme
                    - object
                    type: string
                  keep:
                    description: 'How many snapshots of each pod are kept; absent: the newest one.'
                    properties:
                      last:
                        description: Keep this many of the newest snapshots of each pod.
                        format: int32
                        maximum: 1000
                        minimum: 1
                        type: integer
                        default: 1
                      daily:
                        description: Keep the last snapshot of each of this many days in UTC, today included.
                        format: int32
                        maximum: 366
                        minimum: 0
                        type: integer
                    type: object
                  parallel:
                    description: How many pods are snapshotted at a time.
                    format: int32
                    maximum: 100
                    minimum: 1
                    type: integer
                    default: 1
                required:
                - every
                type: object
              limits:
                description: |-
                  How states of the policy's pods are put away into the object store so that the pods may go:
                  by drains, people and scaling to zero. They count beside those of the controller, and not for
                  preemption and RebalanceRequests. `secondsPerGiB` and `noProgress` count for the policy's
                  snapshots, too.
                properties:
                  parallel:
                    description: How many of the policy's pods are put away at a time.
                    format: int32
                    maximum: 100
                    minimum: 1
                    type: integer
                  secondsPerGiB:
                    description: How long a state may take for each GiB, beyond 2 minutes, before it is cancelled; of an eviction at most evict_s_per_gib of the controller.
                    format: int32
                    maximum: 86400
                    minimum: 1
                    type: integer
                  noProgress:
                    description: How long a state may make no progress before it is cancelled, from 10s; of an eviction at most evict_idle_s of the controller.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                type: object
                x-kubernetes-validations:
                - message: write parallel, secondsPerGiB or noProgress
                  rule: has(self.parallel) || has(self.secondsPerGiB) || has(self.noProgress)
              rebalance:
                description: |-
                  Pods move to a less busy group of GPUs of their node, without an approval. To write this
                  takes the verb `approve` for RebalanceRequests.
                properties:
                  above:
                    description: 'A pod leaves its group from this load of its GPUs on: the percentage of about the last quarter of an hour in which their seats served
                      requests.'
                    format: int32
                    maximum: 100
                    minimum: 1
                    type: integer
                    default: 50
                  every:
                    description: One pod moves in this time at most, of the policy and on a node, from 1m, such as 30m.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  seconds:
                    description: 'Most seconds that a move may be expected to take; absent: no limit.'
                    format: int32
                    minimum: 0
                    type: integer
                type: object
                x-kubernetes-validations:
                - message: every is 1m at least
                  rule: '!has(self.every) || duration(self.every) >= duration(''1m'')'
              onPreempt:
                description: 'What happens to a pod whose seat a pod of higher priority gets. pause: its state goes into the object store, and the pod that replaces
                  it continues. kill: it is deleted.'
                enum:
                - pause
                - kill
                type: string
              onRestoreFailure:
                description: 'What happens to a pod whose artifact (kyb.ai/restore-from) can''t be restored. start: it starts cold. fail: it waits for the artifact,
                  then fails; it never starts cold.'
                enum:
                - start
                - fail
                type: string
            required:
            - selector
            type: object
            x-kubernetes-validations:
            - message: it says nothing; write turn, idle, prefetch, schedule, snapshots, limits, rebalance, onPreempt or onRestoreFailure
              rule: has(self.turn) || has(self.idle) || has(self.prefetch) || has(self.onPreempt) || has(self.onRestoreFailure) || has(self.snapshots) || has(self.limits)
                || has(self.rebalance) || (has(self.schedule) && self.schedule.size() > 0)
          status:
            description: What the controller sees of the policy's effect. Agents don't read it.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              matched:
                description: Number of pods with seats that the policy selects.
                format: int32
                minimum: 0
                type: integer
              governed:
                description: Number of those pods that this policy governs.
                format: int32
                minimum: 0
                type: integer
              snapshots:
                description: The policy's snapshots.
                properties:
                  total:
                    description: Number of snapshots that are kept.
                    format: int32
                    minimum: 0
                    type: integer
                  underWay:
                    description: Number of snapshots under way.
                    format: int32
                    minimum: 0
                    type: integer
                  newest:
                    format: date-time
                    type: string
                type: object
              conditions:
                description: 'Ready: True if the policy holds; the reason says why not. Balanced, with spec.rebalance: True if no pod is to move.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: checkpointrequests.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: CheckpointRequest
    listKind: CheckpointRequestList
    plural: checkpointrequests
    singular: checkpointrequest
    shortNames:
    - ckpt
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .spec.pod
    - jsonPath: .spec.mode
    additionalPrinterColumns:
    - name: Pod
      type: string
      jsonPath: .spec.pod
    - name: Mode
      type: string
      jsonPath: .spec.mode
    - name: Tier
      type: string
      jsonPath: .status.artifact.tier
    - name: Bytes
      type: integer
      jsonPath: .status.artifact.bytes
    - name: Complete
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].reason
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Complete")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: Asks once that a pod with a seat is parked, woken, snapshotted or prepared for its eviction. Whoever creates it needs the right to do the like
          to the pod itself. Deleting it cancels what isn't done yet; an artifact that was made stays.
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: What is asked for.
            properties:
              pod:
                description: Name of the pod, in this namespace.
                maxLength: 253
                minLength: 1
                pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                type: string
              mode:
                description: 'Park: the seat leaves GPU memory and rests until the next request. Snapshot: an artifact of the pod is made, and the pod continues.
                  Evict: the seat is parked and stays parked until its pod is deleted or somebody wakes it. Wake: the seat comes back into GPU memory at its turn,
                  without a request; this also ends an Evict.'
                enum:
                - Park
                - Snapshot
                - Evict
                - Wake
                type: string
              tier:
                description: 'Tier for the parked seat or for the snapshot. Default of Park: ram, from where the node may offload it. Default of Snapshot: the deepest
                  tier that the node has and kyb.ai/park-tier allows. Default of Evict: the tier in which the seat is parked; in object it outlives its node.'
                enum:
                - ram
                - nvme
                - object
                type: string
              successor:
                description: 'For mode Evict: where the pod that replaces this one is bound, if it fits there by then; otherwise it is bound wherever it fits.'
                properties:
                  node:
                    description: Name of a node.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  group:
                    description: 'Name of one of the node''s groups; absent: any group.'
                    maxLength: 63
                    type: string
                required:
                - node
                type: object
              deadlineSeconds:
                description: 'Seconds from the request''s creation after which it is cancelled unless it is done. Those of an Evict count from its beginning, once
                  that has come: it may be Queued.'
                format: int32
                maximum: 86400
                minimum: 1
                type: integer
                default: 600
              ttlSecondsAfterFinished:
                description: 'Seconds after which a request that is done or has failed is deleted; absent: never.'
                format: int32
                minimum: 0
                type: integer
              requestedBy:
                description: Who created it. The webhook writes it; leave it out.
                maxLength: 1024
                type: string
            required:
            - pod
            - mode
            type: object
            x-kubernetes-validations:
            - message: a CheckpointRequest is done once, as it was written; delete it and create another
              rule: self == oldSelf
            - message: 'a snapshot outlives the RAM of its processes; write tier: nvme or object'
              rule: self.mode != 'Snapshot' || !has(self.tier) || self.tier != 'ram'
            - message: 'a successor anywhere continues from the object store; write mode: Evict, tier: object'
              rule: '!has(self.successor) || (self.mode == ''Evict'' && has(self.tier) && self.tier == ''object'')'
            - message: a wake brings the seat into GPU memory; leave tier out
              rule: self.mode != 'Wake' || !has(self.tier)
          status:
            description: How far the request is.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              podUID:
                description: UID of the pod; the request does nothing to another pod of the same name.
                maxLength: 128
                type: string
              owner:
                description: 'What replaces the pod: the UID of its controller and, for a StatefulSet, which of its pods this is.'
                maxLength: 400
                type: string
              bytesLimit:
                description: 'Memory that the pod may have (bytes): its artifact has no more; absent: the pod has no limit.'
                format: int64
                minimum: 0
                type: integer
              node:
                description: The pod's node.
                maxLength: 253
                type: string
              operation:
                description: Name of the operation on the node's agent.
                maxLength: 63
                type: string
              startTime:
                format: date-time
                type: string
              completionTime:
                format: date-time
                type: string
              artifact:
                description: The artifact that the request has made.
                properties:
                  name:
                    description: 'Of a snapshot: name of the artifact, for kyb.ai/restore-from.'
                    maxLength: 400
                    type: string
                  tier:
                    enum:
                    - ram
                    - nvme
                    - object
                    type: string
                  bytes:
                    description: Size of the artifact in that tier (bytes).
                    format: int64
                    minimum: 0
                    type: integer
                type: object
              bytesDone:
                description: Bytes of the artifact that have arrived where they are to be, while it is copied.
                format: int64
                minimum: 0
                type: integer
              bytesTotal:
                description: Size of the artifact (bytes).
                format: int64
                minimum: 0
                type: integer
              copyRestarts:
                description: How often the copy began again from fewer bytes; after the fifth time only more bytes than before count as progress.
                format: int32
                minimum: 0
                type: integer
              estimatedCompletionTime:
                description: When the rest is expected to have arrived.
                format: date-time
                type: string
              progressTime:
                description: When the last of these bytes came.
                format: date-time
                type: string
              scaledUpTime:
                description: 'Of a pod of a Deployment that was scaled to zero: when the Deployment was scaled up again.'
                format: date-time
                type: string
              conditions:
                description: 'Complete: True once the request is done; the reason says why not.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gpunodes.kyb.ai
spec:
  group: kyb.ai
  scope: Cluster
  names:
    kind: GPUNode
    listKind: GPUNodeList
    plural: gpunodes
    singular: gpunode
    shortNames:
    - gpun
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .status.driver.version
    - jsonPath: .status.agent.version
    additionalPrinterColumns:
    - name: Ready
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].status
    - name: GPUs
      type: integer
      jsonPath: .status.summary.gpus
    - name: Product
      type: string
      jsonPath: .status.gpus[0].product
    - name: Seats
      type: string
      jsonPath: .status.summary.seats
    - name: RAM%
      type: integer
      jsonPath: .status.summary.ramPercent
    - name: NVMe%
      type: integer
      jsonPath: .status.summary.nvmePercent
    - name: Driver
      type: string
      priority: 1
      jsonPath: .status.driver.version
    - name: Agent
      type: string
      priority: 1
      jsonPath: .status.agent.address
    - name: Reason
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Ready")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: 'The GPUs of one node as its agent sees them: groups, seats, what each seat does, and how much host memory parked seats may use. The name is
          the node''s name. Written by the agent.'
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          status:
            description: The status of a GPUNode.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              conditions:
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 16
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
              agent:
                description: How to reach the agent by gRPC, and its version.
                properties:
                  address:
                    description: Host and port, e.g. 10.88.1.1:9443.
                    maxLength: 300
                    type: string
                    x-kubernetes-validations:
                    - message: must be host:port
                      rule: self == '' || self.matches('^.+:[0-9]{1,5}$')
                  version:
                    maxLength: 128
                    type: string
                type: object
              driver:
                description: Versions.
                properties:
                  version:
                    maxLength: 128
                    type: string
                  cuda:
                    maxLength: 128
                    type: string
                type: object
              deviceStrategy:
                description: 'How containers get their GPUs. cdi: by CDI device names. nodes: by the device ID that the kubelet allocates, so only pods of one group
                  may be on their way to the node at a time.'
                enum:
                - ''
                - cdi
                - nodes
                type: string
              gpus:
                items:
                  description: A GPU.
                  properties:
                    index:
                      format: int32
                      minimum: 0
                      type: integer
                    uuid:
                      maxLength: 128
                      minLength: 1
                      type: string
                    product:
                      maxLength: 256
                      type: string
                    memoryBytes:
                      format: int64
                      minimum: 0
                      type: integer
                    healthy:
                      type: boolean
                    numa:
                      description: 'NUMA node of the GPU; -1: the platform has none.'
                      format: int32
                      minimum: -1
                      type: integer
                  required:
                  - index
                  - uuid
                  - product
                  - memoryBytes
                  - healthy
                  type: object
                maxItems: 64
                type: array
                x-kubernetes-list-map-keys:
                - uuid
                x-kubernetes-list-type: map
              links:
                description: The best path between two GPUs, one entry per pair.
                items:
                  description: The best path between two GPUs.
                  properties:
                    a:
                      description: UUID of a GPU.
                      maxLength: 128
                      type: string
                    b:
                      description: UUID of another GPU.
                      maxLength: 128
                      type: string
                    kind:
                      maxLength: 64
                      minLength: 1
                      type: string
                  required:
                  - a
                  - b
                  - kind
                  type: object
                  x-kubernetes-validations:
                  - message: a link joins two different GPUs
                    rule: self.a != self.b
                maxItems: 2016
                type: array
                x-kubernetes-list-type: atomic
              groups:
                items:
                  description: A group of GPUs, and its seats.
                  properties:
                    name:
                      maxLength: 52
                      minLength: 1
                      pattern: ^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$
                      type: string
                    resource:
                      maxLength: 20
                      pattern: ^kyb\.ai/gpu-[1-9][0-9]?x-seat$
                      type: string
                    gpus:
                      description: UUIDs, ordered by index.
                      items:
                        maxLength: 128
                        type: string
                      maxItems: 64
                      minItems: 1
                      type: array
                      x-kubernetes-list-type: set
                    seats:
                      format: int32
                      minimum: 0
                      type: integer
                    activeSlots:
                      format: int32
                      minimum: 1
                      type: integer
                  required:
                  - name
                  - resource
                  - gpus
                  - seats
                  - activeSlots
                  type: object
                  x-kubernetes-validations:
                  - message: resource must be kyb.ai/gpu-<n>x-seat for the n GPUs of the group
                    rule: size(self.gpus) == int(self.resource.substring(11, self.resource.indexOf('x-seat')))
                maxItems: 256
                type: array
                x-kubernetes-list-map-keys:
                - name
                x-kubernetes-list-type: map
              budget:
                description: Host memory for parked seats.
                properties:
                  parkBytes:
                    format: int64
                    minimum: 0
                    type: integer
                  parkedBytes:
                    format: int64
                    minimum: 0
                    type: integer
                  availableBytes:
                    description: 'Bytes of RAM that the node has available, written again when it changes by 5 %; 0: not known yet.'
                    format: int64
                    minimum: 0
                    type: integer
                type: object
              tiers:
                description: Tiers in which parked seats may rest, from the fastest to the deepest.
                items:
                  description: One tier of the node.
                  properties:
                    name:
                      enum:
                      - ram
                      - nvme
                      - object
                      type: string
                    seats:
                      format: int32
                      minimum: 0
                      type: integer
                    usedBytes:
                      format: int64
                      minimum: 0
                      type: integer
                    budgetBytes:
                      description: 'Bytes that the tier may hold; 0: no limit.'
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - name
                  type: object
                maxItems: 3
                type: array
                x-kubernetes-list-map-keys:
                - name
                x-kubernetes-list-type: map
              saved:
                description: 'Artifacts that lie on the node, or that the node has put into the object store: the newest ones.'
                items:
                  description: An artifact, and where it lies.
                  properties:
                    artifact:
                      maxLength: 400
                      minLength: 1
                      type: string
                    uid:
                      description: UID of the pod.
                      maxLength: 128
                      minLength: 1
                      type: string
                    tier:
                      enum:
                      - nvme
                      - object
                      type: string
                    bytes:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - artifact
                  - uid
                  - tier
                  - bytes
                  type: object
                maxItems: 256
                type: array
                x-kubernetes-list-map-keys:
                - artifact
                - tier
                x-kubernetes-list-type: map
              seats:
                items:
                  description: What a seat does.
                  properties:
                    uid:
                      description: UID of the pod.
                      maxLength: 128
                      minLength: 1
                      type: string
                    name:
                      maxLength: 63
                      minLength: 1
                      type: string
                    group:
                      maxLength: 52
                      minLength: 1
                      type: string
                    namespace:
                      maxLength: 63
                      type: string
                    pod:
                      maxLength: 253
                      type: string
                    state:
                      enum:
                      - waiting
                      - starting
                      - active
                      - draining
                      - parking
                      - parked
                      - dumping
                      - restoring
                      - waking
                      - failed
                      - gone
                      type: string
                    model:
                      maxLength: 1024
                      type: string
                    tier:
                      description: Tier in which the parked seat rests.
                      enum:
                      - ram
                      - nvme
                      - object
                      type: string
                    savedBytes:
                      description: Size of the seat's artifact, if the seat is offloaded (bytes).
                      format: int64
                      minimum: 0
                      type: integer
                    copiedBytes:
                      description: How much of savedBytes has been copied, while the artifact is copied to or from the object store (bytes); told every 5 s.
                      format: int64
                      minimum: 0
                      type: integer
                    heldBytes:
                      description: GPU memory that the agent has seen the seat hold, rounded up by a fifth at most (bytes).
                      format: int64
                      minimum: 0
                      type: integer
                    reason:
                      maxLength: 4096
                      type: string
                    since:
                      format: date-time
                      type: string
                    requests:
                      format: int64
                      minimum: 0
                      type: integer
                    activeSeconds:
                      minimum: 0
                      type: number
                    wakes:
                      format: int64
                      minimum: 0
                      type: integer
                    lastWakeMs:
                      minimum: 0
                      nullable: true
                      type: number
                    activity:
                      description: 'At which hours the seat is used: 24 numbers, one for each hour of the day in UTC. Newer days weigh more; -1: the agent hasn''t
                        seen that hour yet.'
                      properties:
                        busy:
                          description: Thousandths of the hour in which requests were in flight.
                          items:
                            format: int32
                            maximum: 1000
                            minimum: -1
                            type: integer
                          maxItems: 24
                          minItems: 24
                          type: array
                        calls:
                          description: How often per hour requests began after a pause.
                          items:
                            minimum: -1
                            type: number
                          maxItems: 24
                          minItems: 24
                          type: array
                        recentBusy:
                          description: Thousandths of about the last quarter of an hour in which requests were in flight.
                          format: int32
                          maximum: 1000
                          minimum: 0
                          type: integer
                        recentCalls:
                          minimum: 0
                          type: number
                      required:
                      - busy
                      - calls
                      type: object
                    operation:
                      description: Operation that is under way for the seat, such as park, evict, save or move.
                      maxLength: 63
                      type: string
                    movable:
                      description: 'True: a GPU of the seat''s group is lost, and the seat is parked, so its pod can continue elsewhere.'
                      type: boolean
                    movableReason:
                      maxLength: 4096
                      type: string
                  required:
                  - uid
                  - name
                  - group
                  - namespace
                  - pod
                  - state
                  type: object
                maxItems: 1024
                type: array
                x-kubernetes-list-map-keys:
                - uid
                x-kubernetes-list-type: map
              summary:
                description: The node in a line.
                properties:
                  gpus:
                    description: GPUs that are healthy.
                    format: int32
                    minimum: 0
                    type: integer
                  seats:
                    description: 'Seats that are active, parked and free: 1/3/4.'
                    maxLength: 32
                    type: string
                  ramPercent:
                    description: What parked seats take of the RAM that they may take.
                    format: int32
                    minimum: 0
                    type: integer
                  nvmePercent:
                    description: What is used of the NVMe that there is for artifacts.
                    format: int32
                    minimum: 0
                    type: integer
                type: object
              usage:
                description: What namespaces with a Share have used on this node, written every `usage_interval_s`.
                items:
                  description: What a namespace with a Share has used of the node.
                  properties:
                    namespace:
                      maxLength: 63
                      minLength: 1
                      type: string
                    used:
                      description: What the namespace has used since the window of its Share began.
                      properties:
                        since:
                          format: date-time
                          type: string
                        gpuSeconds:
                          description: GPU-seconds in which the namespace's seats were active.
                          minimum: 0
                          type: number
                        parkedGiBHours:
                          description: GiB of RAM that the namespace's parked seats took, times hours.
                          minimum: 0
                          type: number
                        wakes:
                          description: Wakes of the namespace's seats.
                          format: int64
                          minimum: 0
                          type: integer
                        parkedBytes:
                          description: RAM of all nodes that the namespace's parked seats take now (bytes).
                          format: int64
                          minimum: 0
                          type: integer
                      type: object
                  required:
                  - namespace
                  - used
                  type: object
                maxItems: 1024
                type: array
                x-kubernetes-list-map-keys:
                - namespace
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: shares.kyb.ai
spec:
  group: kyb.ai
  scope: Cluster
  names:
    kind: Share
    listKind: ShareList
    plural: shares
    singular: share
    shortNames:
    - shr
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .spec.weight
    - jsonPath: .spec.quota.gpuSeconds
    additionalPrinterColumns:
    - name: Weight
      type: integer
      jsonPath: .spec.weight
    - name: GPU-Seconds
      type: number
      jsonPath: .status.used.gpuSeconds
    - name: Quota
      type: integer
      jsonPath: .spec.quota.gpuSeconds
    - name: Within
      type: string
      jsonPath: .status.conditions[?(@.type=="WithinQuota")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="WithinQuota")].reason
    - name: Wakes
      type: integer
      priority: 1
      jsonPath: .status.used.wakes
    - name: Parked-GiB-Hours
      type: number
      priority: 1
      jsonPath: .status.used.parkedGiBHours
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="WithinQuota")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: Says how much the namespace of the same name gets of GPUs that seats of several namespaces want, and how much of GPUs and RAM it may use. Administrators
          write Shares.
        x-kubernetes-validations:
        - message: 'a Share has the name of its namespace: at most 63 of a-z, 0-9 and -'
          rule: self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: How much the namespace gets, and how much it may use.
            properties:
              weight:
                description: Weight of the namespace against others whose seats always want the same GPUs; a namespace without a Share has 100. The namespace's seats
                  divide its part by their own weights.
                format: int32
                maximum: 100000
                minimum: 1
                type: integer
                default: 100
              window:
                description: Length of the window in which use is counted, from 1m to 744h; each window starts from zero. Windows begin at multiples of this length
                  since 1970 in UTC, so 24h is a day.
                maxLength: 32
                pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                type: string
                default: 24h
              quota:
                description: 'How much the namespace may use; absent: no limit.'
                properties:
                  gpuSeconds:
                    description: Seconds in which the namespace's seats may be active in each window, times their GPUs. After that its seats come after those of other
                      namespaces; its requests still wake them.
                    format: int64
                    minimum: 0
                    type: integer
                  parkedGiBPerNode:
                    description: GiB of each node's RAM that the namespace's parked seats may take. Seats beyond that leave RAM for the next tier, if kyb.ai/park-tier
                      allows it.
                    format: int32
                    maximum: 1000000
                    minimum: 0
                    type: integer
                type: object
                x-kubernetes-validations:
                - message: 'name a quota: gpuSeconds or parkedGiBPerNode'
                  rule: has(self.gpuSeconds) || has(self.parkedGiBPerNode)
            type: object
            x-kubernetes-validations:
            - message: window must be between 1m and 744h (31 days)
              rule: '!has(self.window) || (duration(self.window) >= duration(''1m'') && duration(self.window) <= duration(''744h''))'
          status:
            description: What the controller sees of the Share's effect.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              used:
                description: What the namespace has used since the window began, as far as nodes have reported.
                properties:
                  since:
                    format: date-time
                    type: string
                  gpuSeconds:
                    description: GPU-seconds in which the namespace's seats were active.
                    minimum: 0
                    type: number
                  parkedGiBHours:
                    description: GiB of RAM that the namespace's parked seats took, times hours.
                    minimum: 0
                    type: number
                  wakes:
                    description: Wakes of the namespace's seats.
                    format: int64
                    minimum: 0
                    type: integer
                  parkedBytes:
                    description: RAM of all nodes that the namespace's parked seats take now (bytes).
                    format: int64
                    minimum: 0
                    type: integer
                type: object
              conditions:
                description: 'WithinQuota: True if the namespace is within its quota; the reason says why not.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: rebalancerequests.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: RebalanceRequest
    listKind: RebalanceRequestList
    plural: rebalancerequests
    singular: rebalancerequest
    shortNames:
    - rbal
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .spec.move.pod
    - jsonPath: .spec.move.model
    - jsonPath: .spec.emptyNode
    additionalPrinterColumns:
    - name: Pod
      type: string
      jsonPath: .spec.move.pod
    - name: Node
      type: string
      jsonPath: .spec.emptyNode
    - name: Moves
      type: integer
      jsonPath: .status.plan.moves
    - name: Done
      type: integer
      jsonPath: .status.movesDone
    - name: Complete
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].reason
    - name: Seconds
      type: number
      priority: 1
      jsonPath: .status.plan.seconds
    - name: Plan
      type: string
      priority: 1
      jsonPath: .status.plan.hash
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Complete")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: Asks once for a plan that moves a pod to another group or node, empties a node, or makes room for pods that wait. The plan and its cost are in
          the status, and nothing happens before somebody approves it. A request in kyb-system may move pods of all namespaces, one elsewhere only those of its own.
          If you delete it, no further step begins.
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: What is asked for, and which plan is approved.
            properties:
              move:
                description: Plan to move a pod, or a model.
                properties:
                  to:
                    description: Target of the move. No other pod is moved for it.
                    properties:
                      node:
                        description: 'Name of a node; absent: the pod''s own node.'
                        maxLength: 253
                        pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                        type: string
                      group:
                        description: 'Name of one of the node''s groups; absent: any group in which the pod fits.'
                        maxLength: 63
                        type: string
                    type: object
                    x-kubernetes-validations:
                    - message: name a node, a group, or both
                      rule: has(self.node) || has(self.group)
                  pod:
                    description: The pod, of this namespace.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  model:
                    description: The model (kyb.ai/model) whose pods of this namespace move, all that aren't there yet, one after another. One that can't move keeps
                      all of them.
                    maxLength: 1024
                    minLength: 1
                    type: string
                required:
                - to
                type: object
                x-kubernetes-validations:
                - message: name either a pod or a model
                  rule: has(self.pod) != has(self.model)
                - message: pods of a model may be on several nodes; name a node in to
                  rule: '!has(self.model) || has(self.to.node)'
              emptyNode:
                description: Plan to move all pods off this node.
                maxLength: 253
                minLength: 1
                pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                type: string
              defragment:
                description: Plan to make room for pods that wait.
                properties:
                  pod:
                    description: 'Name of the pod, in this namespace; absent: all pods that wait.'
                    maxLength: 253
                    type: string
                type: object
              budget:
                description: Most that the plan may cost.
                properties:
                  moves:
                    description: Most pods that the plan may move.
                    format: int32
                    maximum: 100
                    minimum: 1
                    type: integer
                    default: 10
                  seconds:
                    description: 'Most seconds that all moves may take together; absent: no limit.'
                    format: int32
                    minimum: 0
                    type: integer
                type: object
              approvedPlan:
                description: The value of status.plan.hash. Whoever has the verb `approve` for RebalanceRequests writes it, and so has that plan carried out. Leave
                  it out when you create a request. It may be written again for a plan that has changed, until status.startTime is there.
                maxLength: 64
                type: string
              deadlineSeconds:
                description: 'Seconds from the request''s creation in which a plan must be approved, and from the approval in which steps may begin. With emptyNode
                  a plan that is expected to take longer is none, and what is put away then is cancelled: its pod stays where it is.'
                format: int32
                maximum: 86400
                minimum: 1
                type: integer
                default: 3600
              ttlSecondsAfterFinished:
                description: 'Seconds after which a request that is done or has failed is deleted; absent: never.'
                format: int32
                minimum: 0
                type: integer
              requestedBy:
                description: Who created it. The webhook writes it; leave it out.
                maxLength: 1024
                type: string
            type: object
            x-kubernetes-validations:
            - message: 'ask for one thing: move, emptyNode or defragment'
              rule: '[has(self.move), has(self.emptyNode), has(self.defragment)].filter(x, x).size() == 1'
            - message: move stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.move) == has(oldSelf.move) && (!has(self.move) || self.move == oldSelf.move)
            - message: emptyNode stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.emptyNode) == has(oldSelf.emptyNode) && (!has(self.emptyNode) || self.emptyNode == oldSelf.emptyNode)
            - message: defragment stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.defragment) == has(oldSelf.defragment) && (!has(self.defragment) || self.defragment == oldSelf.defragment)
            - message: budget stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.budget) == has(oldSelf.budget) && (!has(self.budget) || self.budget == oldSelf.budget)
            - message: deadlineSeconds stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.deadlineSeconds) == has(oldSelf.deadlineSeconds) && (!has(self.deadlineSeconds) || self.deadlineSeconds == oldSelf.deadlineSeconds)
            - message: ttlSecondsAfterFinished stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.ttlSecondsAfterFinished) == has(oldSelf.ttlSecondsAfterFinished) && (!has(self.ttlSecondsAfterFinished) || self.ttlSecondsAfterFinished
                == oldSelf.ttlSecondsAfterFinished)
            - message: requestedBy stays as it was written, and a plan with it; delete the request and create another
              rule: has(self.requestedBy) == has(oldSelf.requestedBy) && (!has(self.requestedBy) || self.requestedBy == oldSelf.requestedBy)
          status:
            description: How far the request is.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              plan:
                description: The plan and its cost.
                properties:
                  hash:
                    description: Hash of the steps, which an approval names.
                    maxLength: 64
                    type: string
                  moves:
                    description: Number of pods that the plan moves.
                    format: int64
                    minimum: 0
                    type: integer
                  seconds:
                    description: Expected duration (s).
                    minimum: 0
                    type: number
                  bytes:
                    description: Bytes that the plan moves.
                    format: int64
                    minimum: 0
                    type: integer
                  message:
                    description: The plan in a sentence.
                    maxLength: 1024
                    type: string
                  steps:
                    description: Steps in the order of their execution.
                    items:
                      description: A step.
                      properties:
                        kind:
                          description: 'move: the pod continues elsewhere. place: the pod waits, and is bound.'
                          enum:
                          - move
                          - suspend
                          - delete
                          - resume
                          - place
                          type: string
                        namespace:
                          description: Namespace of the pod.
                          maxLength: 63
                          type: string
                        pod:
                          description: Name of the pod.
                          maxLength: 253
                          type: string
                        uid:
                          description: UID of the pod.
                          maxLength: 128
                          type: string
                        from:
                          description: Where the pod is.
                          properties:
                            node:
                              maxLength: 253
                              type: string
                            group:
                              maxLength: 63
                              type: string
                          type: object
                        to:
                          description: Where the pod is to be.
                          properties:
                            node:
                              maxLength: 253
                              type: string
                            group:
                              maxLength: 63
                              type: string
                          type: object
                        bytes:
                          description: Bytes that the step moves.
                          format: int64
                          minimum: 0
                          type: integer
                        seconds:
                          description: Expected duration (s).
                          minimum: 0
                          type: number
                        stage:
                          description: How far the step is.
                          enum:
                          - Waiting
                          - Saving
                          - Leaving
                          - Arriving
                          - Done
                          type: string
                        successor:
                          description: UID of the pod that continues.
                          maxLength: 128
                          type: string
                      required:
                      - kind
                      - namespace
                      - pod
                      - uid
                      type: object
                    maxItems: 200
                    type: array
                    x-kubernetes-list-type: atomic
                required:
                - hash
                type: object
              planTime:
                description: When the plan was made. It is made again once it is approved, and once pods are not where it has them.
                format: date-time
                type: string
              movesDone:
                description: Number of pods that continue where they are to be.
                format: int64
                minimum: 0
                type: integer
              bytesDone:
                description: Bytes that were moved.
                format: int64
                minimum: 0
                type: integer
              startTime:
                description: When the first step began.
                format: date-time
                type: string
              completionTime:
                format: date-time
                type: string
              estimatedCompletionTime:
                description: When the rest is expected to be done.
                format: date-time
                type: string
              conditions:
                description: 'Complete: True once the request is done; the reason says why not.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: restorerequests.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: RestoreRequest
    listKind: RestoreRequestList
    plural: restorerequests
    singular: restorerequest
    shortNames:
    - rst
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .spec.as
    - jsonPath: .spec.source.artifact
    - jsonPath: .spec.source.pod
    - jsonPath: .status.pod
    - jsonPath: .status.node
    additionalPrinterColumns:
    - name: As
      type: string
      jsonPath: .spec.as
    - name: Pod
      type: string
      jsonPath: .status.pod
    - name: Node
      type: string
      jsonPath: .status.node
    - name: Complete
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].reason
    - name: Artifact
      type: string
      priority: 1
      jsonPath: .status.artifact
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Complete")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: 'Asks once for a pod that continues from an artifact: as the successor of the artifact''s pod, or as a copy. Whoever creates it needs the right
          to create pods in the namespace and to restore the artifact. Deleting it deletes a clone that it made; other pods stay.'
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: What is asked for.
            properties:
              source:
                description: 'What is restored: an artifact, the newest one of a pod, or that of a SnapshotTemplate.'
                properties:
                  artifact:
                    description: Name of the Artifact.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  pod:
                    description: Name of the pod whose newest artifact is restored.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  template:
                    description: Name of the SnapshotTemplate whose artifact is restored. The pod is made as the SnapshotTemplate says, unless spec.template is there.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  namespace:
                    description: 'Namespace of the artifact or pod; absent: this one. Another one needs an ArtifactGrant there.'
                    maxLength: 63
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$
                    type: string
                type: object
                x-kubernetes-validations:
                - message: name one of artifact, pod and template
                  rule: '[has(self.artifact), has(self.pod), has(self.template)].filter(x, x).size() == 1'
                - message: a SnapshotTemplate is one of this namespace; leave namespace out
                  rule: '!has(self.template) || !has(self.__namespace__)'
              as:
                description: 'successor: the new pod continues in the place of the artifact''s pod, once that one has stopped; there is one successor. template: the
                  new pod is a copy. clone: the new pod is a copy to look into, without network, and ends with this request.'
                enum:
                - successor
                - template
                - clone
                type: string
              stopped:
                description: 'Of a clone: every process of the clone stays stopped before its first instruction.'
                type: boolean
              podName:
                description: 'Name of the new pod; absent: the request''s name.'
                maxLength: 253
                minLength: 1
                pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                type: string
              nodeSelector:
                additionalProperties:
                  maxLength: 63
                  type: string
                description: Labels of the nodes to which the new pod may be bound.
                maxProperties: 16
                type: object
              template:
                description: 'The new pod''s metadata and spec, as in a Deployment; absent: those of the artifact''s pod, which must still exist.'
                type: object
                x-kubernetes-preserve-unknown-fields: true
              deadlineSeconds:
                description: Seconds from the request's creation after which it has failed unless it is done.
                format: int32
                maximum: 86400
                minimum: 1
                type: integer
                default: 600
              ttlSecondsAfterFinished:
                description: 'Seconds after which a request that is done or has failed is deleted, with its clone; absent: never.'
                format: int32
                minimum: 0
                type: integer
              requestedBy:
                description: Who created it. The webhook writes it; leave it out.
                maxLength: 1024
                type: string
            required:
            - source
            - as
            type: object
            x-kubernetes-validations:
            - message: 'a successor or a template that stands still is of no use; write as: clone'
              rule: '!has(self.stopped) || !self.stopped || self.__as__ == ''clone'''
            - message: 'a pod succeeds only one of its own namespace; write as: template or clone'
              rule: '!has(self.source.__namespace__) || self.__as__ != ''successor'''
            - message: 'a SnapshotTemplate''s pod has no place to take; write as: template or clone'
              rule: '!has(self.source.template) || self.__as__ != ''successor'''
          status:
            description: How far the request is.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              artifact:
                description: Name of the artifact, as in kyb.ai/restore-from.
                maxLength: 400
                type: string
              sourceUID:
                description: UID of the pod whose state is restored.
                maxLength: 128
                type: string
              pod:
                description: Name of the new pod.
                maxLength: 253
                type: string
              podUID:
                description: UID of the new pod; the controller makes no second one.
                maxLength: 128
                type: string
              node:
                description: Node of the new pod.
                maxLength: 253
                type: string
              startTime:
                format: date-time
                type: string
              completionTime:
                format: date-time
                type: string
              bytesDone:
                description: Bytes of the artifact that have arrived where they are to be, while it is copied.
                format: int64
                minimum: 0
                type: integer
              bytesTotal:
                description: Size of the artifact (bytes).
                format: int64
                minimum: 0
                type: integer
              copyRestarts:
                description: How often the copy began again from fewer bytes; after the fifth time only more bytes than before count as progress.
                format: int32
                minimum: 0
                type: integer
              estimatedCompletionTime:
                description: When the rest is expected to have arrived.
                format: date-time
                type: string
              progressTime:
                description: When the last of these bytes came.
                format: date-time
                type: string
              conditions:
                description: 'Complete: True once the request is done; the reason says why not.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: snapshottemplates.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: SnapshotTemplate
    listKind: SnapshotTemplateList
    plural: snapshottemplates
    singular: snapshottemplate
    shortNames:
    - stpl
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .status.artifact.name
    - jsonPath: .status.artifact.madeOn.product
    - jsonPath: .status.artifact.madeOn.driver
    additionalPrinterColumns:
    - name: Ready
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].reason
    - name: Product
      type: string
      jsonPath: .status.artifact.madeOn.product
    - name: Bytes
      type: integer
      jsonPath: .status.artifact.bytes
    - name: Made
      type: date
      jsonPath: .status.artifact.at
    - name: Artifact
      type: string
      priority: 1
      jsonPath: .status.artifact.name
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Ready")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: 'A workload that is started and warmed up once. Pods with the annotation kyb.ai/restore-from: template/NAME start as copies of it. The controller
          makes one pod from the spec, keeps an artifact of it in the object store, and deletes the pod; it does so again when the image, the spec, or the GPUs''
          product or driver change. Whoever writes it needs the rights to create pods in the namespace and to run commands in them.'
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: The pod, and what it does before its artifact is made.
            properties:
              template:
                description: The pod, as in a Deployment.
                properties:
                  spec:
                    description: The pod's spec, the same as that of the pods that start from the template.
                    type: object
                    x-kubernetes-preserve-unknown-fields: true
                  metadata:
                    description: The pod's metadata.
                    properties:
                      labels:
                        additionalProperties:
                          type: string
                        type: object
                      annotations:
                        additionalProperties:
                          type: string
                        type: object
                    type: object
                required:
                - spec
                type: object
              port:
                description: 'Port for the requests below; absent: the first port of the container with the seat.'
                format: int32
                maximum: 65535
                minimum: 1
                type: integer
              readyWhen:
                description: Condition for warmUp to begin, besides the pod's own readiness probe.
                properties:
                  get:
                    description: Path that the pod answers with 2xx once it is ready.
                    maxLength: 1024
                    minLength: 1
                    pattern: ^/[!-~]*$
                    type: string
                required:
                - get
                type: object
              warmUp:
                description: Requests that are sent one after another; the pod must answer each with 2xx.
                items:
                  description: One request.
                  properties:
                    get:
                      description: Path of the request.
                      maxLength: 1024
                      minLength: 1
                      pattern: ^/[!-~]*$
                      type: string
                    post:
                      description: Path of the request.
                      maxLength: 1024
                      minLength: 1
                      pattern: ^/[!-~]*$
                      type: string
                    body:
                      description: Body of a POST, sent as JSON.
                      type: object
                      x-kubernetes-preserve-unknown-fields: true
                  type: object
                  x-kubernetes-validations:
                  - message: write get or post, with a path
                    rule: has(self.get) != has(self.post)
                  - message: only post has a body
                    rule: '!has(self.body) || has(self.post)'
                maxItems: 16
                type: array
                x-kubernetes-list-type: atomic
              deadlineSeconds:
                description: Seconds from the pod's creation in which its artifact must be made.
                format: int32
                maximum: 86400
                minimum: 60
                type: integer
                default: 1800
            required:
            - template
            type: object
          status:
            description: How far the template is; the controller writes it.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              builds:
                description: Number of artifacts that the controller has begun to make.
                format: int32
                minimum: 0
                type: integer
              artifact:
                description: The artifact from which pods start.
                properties:
                  name:
                    maxLength: 400
                    type: string
                  request:
                    description: The CheckpointRequest that made the artifact.
                    maxLength: 253
                    type: string
                  node:
                    maxLength: 253
                    type: string
                  bytes:
                    format: int64
                    minimum: 0
                    type: integer
                  at:
                    format: date-time
                    type: string
                  madeOn:
                    description: On what the artifact's pod ran.
                    properties:
                      spec:
                        description: Hash of the template's spec.
                        maxLength: 64
                        type: string
                      image:
                        description: Digest of the image.
                        maxLength: 1024
                        type: string
                      product:
                        description: Product of the GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Version of the GPUs' driver.
                        maxLength: 64
                        type: string
                    type: object
                  madeFor:
                    description: What the template asked for at that time.
                    properties:
                      spec:
                        description: Hash of the template's spec.
                        maxLength: 64
                        type: string
                      image:
                        description: Digest of the image.
                        maxLength: 1024
                        type: string
                      product:
                        description: Product of the GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Version of the GPUs' driver.
                        maxLength: 64
                        type: string
                    type: object
                required:
                - name
                - request
                type: object
              build:
                description: The artifact that is being made.
                properties:
                  number:
                    format: int32
                    minimum: 0
                    type: integer
                  pod:
                    maxLength: 253
                    type: string
                  podUID:
                    maxLength: 128
                    type: string
                  node:
                    maxLength: 253
                    type: string
                  failures:
                    description: Number of attempts in a row that have failed before this one.
                    format: int32
                    minimum: 0
                    type: integer
                  notBefore:
                    format: date-time
                    type: string
                  madeOn:
                    description: What an artifact fits.
                    properties:
                      spec:
                        description: Hash of the template's spec.
                        maxLength: 64
                        type: string
                      image:
                        description: Digest of the image.
                        maxLength: 1024
                        type: string
                      product:
                        description: Product of the GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Version of the GPUs' driver.
                        maxLength: 64
                        type: string
                    type: object
                  madeFor:
                    description: What an artifact fits.
                    properties:
                      spec:
                        description: Hash of the template's spec.
                        maxLength: 64
                        type: string
                      image:
                        description: Digest of the image.
                        maxLength: 1024
                        type: string
                      product:
                        description: Product of the GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Version of the GPUs' driver.
                        maxLength: 64
                        type: string
                    type: object
                required:
                - number
                type: object
              conditions:
                description: 'Ready: True if pods start from the template''s artifact; the reason says more.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: tierplacements.kyb.ai
spec:
  group: kyb.ai
  scope: Namespaced
  names:
    kind: TierPlacement
    listKind: TierPlacementList
    plural: tierplacements
    singular: tierplacement
    shortNames:
    - tpl
    categories:
    - kyb
    - kybernate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources:
      status: {}
    selectableFields:
    - jsonPath: .spec.pinnedUntil
    - jsonPath: .spec.copies.object
    additionalPrinterColumns:
    - name: Matched
      type: integer
      jsonPath: .status.matched
    - name: Copies
      type: integer
      jsonPath: .status.copiesThere
    - name: Wanted
      type: integer
      jsonPath: .status.copiesWanted
    - name: Until
      type: string
      jsonPath: .spec.pinnedUntil
    - name: Ready
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].reason
    - name: Pinned
      type: integer
      priority: 1
      jsonPath: .status.pinned
    - name: Message
      type: string
      priority: 1
      jsonPath: .status.conditions[?(@.type=="Ready")].message
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
    schema:
      openAPIV3Schema:
        type: object
        description: 'Says which artifacts of the namespace are kept, chosen by the labels of Artifacts, in which tiers copies of them lie, on how many nodes, and
          until when nothing drops them. Who writes it must have the right to restore the namespace''s artifacts. Deleting it lets them go a minute later: what nothing
          else holds is dropped then.'
        required:
        - spec
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: Which artifacts are kept, where, and until when.
            properties:
              selector:
                description: Labels of Artifacts. Empty, it selects all of the namespace.
                properties:
                  matchLabels:
                    additionalProperties:
                      maxLength: 63
                      type: string
                    description: Labels that an Artifact must have, with these values.
                    maxProperties: 16
                    type: object
                  matchExpressions:
                    description: What else is wanted of its labels; all must be so.
                    items:
                      description: What is wanted of one label.
                      properties:
                        key:
                          description: The label.
                          maxLength: 317
                          minLength: 1
                          type: string
                        operator:
                          enum:
                          - In
                          - NotIn
                          - Exists
                          - DoesNotExist
                          type: string
                        values:
                          items:
                            maxLength: 63
                            type: string
                          maxItems: 64
                          type: array
                          x-kubernetes-list-type: set
                      required:
                      - key
                      - operator
                      type: object
                      x-kubernetes-validations:
                      - message: In and NotIn take values; Exists and DoesNotExist take none
                        rule: (self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)
                    maxItems: 16
                    type: array
                    x-kubernetes-list-type: atomic
                type: object
              copies:
                description: Where copies are to lie, beside those that seats need.
                properties:
                  object:
                    description: '1: in the object store. 0: not for this; a node''s NVMe takes only what is there anyway.'
                    format: int32
                    maximum: 1
                    minimum: 0
                    type: integer
                    default: 1
                  nvme:
                    description: |-
                      On the NVMe of nodes. They take it from the object store, still encrypted, where the states
                      of their own seats leave room.
                    properties:
                      nodes:
                        description: Labels of nodes. Empty, it selects all that have an agent.
                        properties:
                          matchLabels:
                            additionalProperties:
                              maxLength: 63
                              type: string
                            description: Labels that a node must have, with these values.
                            maxProperties: 16
                            type: object
                          matchExpressions:
                            description: What else is wanted of its labels; all must be so.
                            items:
                              description: What is wanted of one label.
                              properties:
                                key:
                                  description: The label.
                                  maxLength: 317
                                  minLength: 1
                                  type: string
                                operator:
                                  enum:
                                  - In
                                  - NotIn
                                  - Exists
                                  - DoesNotExist
                                  type: string
                                values:
                                  items:
                                    maxLength: 63
                                    type: string
                                  maxItems: 64
                                  type: array
                                  x-kubernetes-list-type: set
                              required:
                              - key
                              - operator
                              type: object
                              x-kubernetes-validations:
                              - message: In and NotIn take values; Exists and DoesNotExist take none
                                rule: (self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)
                            maxItems: 16
                            type: array
                            x-kubernetes-list-type: atomic
                        type: object
                      number:
                        description: 'On so many of them; absent: on each.'
                        format: int32
                        maximum: 256
                        minimum: 1
                        type: integer
                    required:
                    - nodes
                    type: object
                type: object
              newest:
                description: Of the artifacts that match, so many, the newest. An older one is let go as soon as a newer one comes.
                format: int32
                maximum: 100
                minimum: 1
                type: integer
                default: 10
              pinnedUntil:
                description: 'Until then nothing drops them, whatever becomes of their pods; absent: for as long as the TierPlacement is there.'
                format: date-time
                type: string
            required:
            - selector
            - copies
            type: object
          status:
            description: |-
              What comes of it, as the controller sees it. Agents and the registry go by `artifacts` and
              `copies`.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              matched:
                description: Artifacts that have these labels.
                format: int32
                minimum: 0
                type: integer
              pinned:
                description: Those that are kept.
                format: int32
                minimum: 0
                type: integer
              placed:
                description: Those of which every copy is there.
                format: int32
                minimum: 0
                type: integer
              copiesWanted:
                description: Copies of all of them.
                format: int32
                minimum: 0
                type: integer
              copiesThere:
                description: Those that are there.
                format: int32
                minimum: 0
                type: integer
              bytesDone:
                description: Of copies that are being made.
                format: int64
                minimum: 0
                type: integer
              bytesTotal:
                description: Of copies that are being made.
                format: int64
                minimum: 0
                type: integer
              estimatedCompletionTime:
                format: date-time
                type: string
              artifacts:
                description: Which are kept, by their names everywhere else.
                items:
                  maxLength: 400
                  minLength: 1
                  type: string
                maxItems: 100
                type: array
                x-kubernetes-list-type: set
              copies:
                description: Copies that are wanted.
                items:
                  description: One copy that is wanted.
                  properties:
                    artifact:
                      description: Its name everywhere else.
                      maxLength: 400
                      minLength: 1
                      type: string
                    tier:
                      enum:
                      - nvme
                      - object
                      type: string
                    state:
                      description: 'There: verified by the node that made it.'
                      enum:
                      - Waiting
                      - Copying
                      - There
                      type: string
                    node:
                      description: Whose NVMe, or whose agent puts it into the store.
                      maxLength: 253
                      type: string
                    operation:
                      description: Its name on that node's agent.
                      maxLength: 63
                      type: string
                    tries:
                      description: How many came to nothing.
                      format: int32
                      minimum: 0
                      type: integer
                    notBefore:
                      format: date-time
                      type: string
                    beganAt:
                      format: date-time
                      type: string
                    bytesDone:
                      format: int64
                      minimum: 0
                      type: integer
                    bytesTotal:
                      format: int64
                      minimum: 0
                      type: integer
                    message:
                      maxLength: 1024
                      type: string
                  required:
                  - artifact
                  - tier
                  - state
                  type: object
                maxItems: 256
                type: array
                x-kubernetes-list-type: atomic
              conditions:
                description: 'Ready: whether every copy is there; the reason says why not.'
                items:
                  description: As Kubernetes' own conditions are.
                  properties:
                    type:
                      maxLength: 316
                      minLength: 1
                      type: string
                    status:
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                      type: string
                    reason:
                      maxLength: 1024
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                      type: string
                    message:
                      maxLength: 32768
                      type: string
                    lastTransitionTime:
                      format: date-time
                      type: string
                    observedGeneration:
                      format: int64
                      minimum: 0
                      type: integer
                  required:
                  - type
                  - status
                  - reason
                  - message
                  - lastTransitionTime
                  type: object
                maxItems: 8
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
            type: object
