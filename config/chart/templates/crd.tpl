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
        description: 'What the registry knows of an artifact of this namespace: the newest ones are shown. Written by the controller, and gone when the registry drops
          the artifact; deleting it deletes no artifact, and the controller writes it again.'
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
                description: Its name everywhere else, as for kyb.ai/restore-from.
                maxLength: 400
                minLength: 1
                type: string
              pod:
                description: The pod whose state it is, by its name.
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
                description: Its size; a copy may take less.
                format: int64
                minimum: 0
                type: integer
              takenAt:
                format: date-time
                type: string
              copies:
                description: Where it lies.
                items:
                  description: A copy of it.
                  properties:
                    tier:
                      enum:
                      - nvme
                      - object
                      type: string
                    state:
                      description: 'pending: on its way, or not read back yet. verified: read back from there. missing: lost or damaged.'
                      enum:
                      - pending
                      - verified
                      - missing
                      type: string
                    node:
                      description: The node that has it, if it is on a node.
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
          kyb.ai/restore-as. An artifact is all memory of its pod, secrets too: whoever is named gets them. Deleting the ArtifactGrant takes that back for what doesn''t
          run yet.'
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
              Which saved states whose pods may have. All of it is required: what is misspelled would be
              dropped, and grant more than was meant.
            properties:
              to:
                description: The namespaces whose pods may restore, by their names, such as team-b.
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
                description: 'Whose artifacts: names of pods, such as llama-0, which stand between / and @ in the name of an artifact. Those are granted that there
                  are, and those to come. "*", alone, is all of this namespace.'
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
                description: When it ends, such as 2028-01-01T00:00:00Z; never for when it is deleted. What runs by then continues.
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
        description: 'Says of pods with seats, chosen by their labels, what they don''t say themselves by annotations: whose turn it is and when seats rest, by the
          clock if need be. It holds at once for pods that run. Who writes it must have the right to change the namespace''s pods.'
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
            description: Which pods, and what counts for them unless their own annotations say otherwise.
            properties:
              selector:
                description: Labels of pods. Empty, it selects all pods of the namespace.
                properties:
                  matchLabels:
                    additionalProperties:
                      maxLength: 63
                      type: string
                    description: Labels that a pod must have, with these values.
                    maxProperties: 16
                    type: object
                  matchExpressions:
                    description: What else is wanted of a pod's labels; all must be so.
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
                description: Of several policies that select a pod the one with the highest governs it, of several such the first by name.
                format: int32
                maximum: 1000000
                minimum: 0
                type: integer
              turn:
                description: Whose turn it is, in the words of the annotation kyb.ai/turn.
                properties:
                  mode:
                    description: 'on-request: its seat wakes when it is requested. always: it takes turns with others that always want their GPUs. auto: always for
                      a Job''s pod, and for one without a model and a port.'
                    enum:
                    - on-request
                    - always
                    - auto
                    type: string
                  weight:
                    description: Among seats of the namespace that take turns.
                    format: int32
                    maximum: 1000
                    minimum: 1
                    type: integer
                type: object
                x-kubernetes-validations:
                - message: 'a seat that waits for requests has no weight; leave weight out, or write mode: always'
                  rule: '!has(self.weight) || !has(self.mode) || self.mode != ''on-request'''
                - message: write mode, weight or both
                  rule: has(self.mode) || has(self.weight)
              idle:
                description: After how long without use a seat leaves a tier, as in the annotation kyb.ai/idle.
                properties:
                  vram:
                    description: GPU memory, for RAM.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  ram:
                    description: RAM, for NVMe.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  nvme:
                    description: NVMe, for the object store.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  object:
                    description: 'The object store, with its pod: once all pods of a Deployment have rested there for so long it is scaled to zero, until a request
                      for its model comes. No annotation says this.'
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                type: object
                x-kubernetes-validations:
                - message: 'name a tier: vram, ram, nvme or object'
                  rule: has(self.vram) || has(self.ram) || has(self.nvme) || has(self.object)
              schedule:
                description: What counts at times. Of several that are now, the first.
                items:
                  description: What counts for a while, from certain times on.
                  properties:
                    cron:
                      description: 'When it begins: minute, hour, day of month, month and day of week, such as "0 8 * * 1-5".'
                      maxLength: 100
                      pattern: ^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$
                      type: string
                    duration:
                      description: How long it lasts, such as 10h; at most 8784h.
                      maxLength: 32
                      minLength: 1
                      pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                      type: string
                    timeZone:
                      description: 'The clocks by which it begins, such as Europe/Berlin; absent: UTC.'
                      maxLength: 64
                      minLength: 1
                      type: string
                    turn:
                      description: Whose turn it is, in the words of the annotation kyb.ai/turn.
                      properties:
                        mode:
                          description: 'on-request: its seat wakes when it is requested. always: it takes turns with others that always want their GPUs. auto: always
                            for a Job''s pod, and for one without a model and a port.'
                          enum:
                          - on-request
                          - always
                          - auto
                          type: string
                        weight:
                          description: Among seats of the namespace that take turns.
                          format: int32
                          maximum: 1000
                          minimum: 1
                          type: integer
                      type: object
                      x-kubernetes-validations:
                      - message: 'a seat that waits for requests has no weight; leave weight out, or write mode: always'
                        rule: '!has(self.weight) || !has(self.mode) || self.mode != ''on-request'''
                      - message: write mode, weight or both
                        rule: has(self.mode) || has(self.weight)
                    idle:
                      description: After how long without use a seat leaves a tier, as in the annotation kyb.ai/idle.
                      properties:
                        vram:
                          description: GPU memory, for RAM.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        ram:
                          description: RAM, for NVMe.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        nvme:
                          description: NVMe, for the object store.
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                        object:
                          description: 'The object store, with its pod: once all pods of a Deployment have rested there for so long it is scaled to zero, until a
                            request for its model comes. No annotation says this.'
                          maxLength: 32
                          minLength: 1
                          pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                          type: string
                      type: object
                      x-kubernetes-validations:
                      - message: 'name a tier: vram, ram, nvme or object'
                        rule: has(self.vram) || has(self.ram) || has(self.nvme) || has(self.object)
                  required:
                  - cron
                  - duration
                  type: object
                  x-kubernetes-validations:
                  - message: write turn, idle or both
                    rule: has(self.turn) || has(self.idle)
                maxItems: 16
                type: array
                x-kubernetes-list-type: atomic
              snapshots:
                description: Snapshots that are made again and again while a pod runs.
                properties:
                  every:
                    description: How often, from 1m to 168h. Each pod has other moments.
                    maxLength: 32
                    minLength: 1
                    pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                    type: string
                  to:
                    description: 'Where they are kept; absent: the deepest tier that the node has and the pod lets it.'
                    enum:
                    - nvme
                    - object
                    type: string
                  keep:
                    description: 'Which are kept; absent: the newest.'
                    properties:
                      last:
                        description: So many of each pod, the newest.
                        format: int32
                        maximum: 1000
                        minimum: 1
                        type: integer
                        default: 1
                      daily:
                        description: Of so many days, by UTC and today's too, the last one.
                        format: int32
                        maximum: 366
                        minimum: 0
                        type: integer
                    type: object
                  parallel:
                    description: So many pods at a time.
                    format: int32
                    maximum: 100
                    minimum: 1
                    type: integer
                    default: 1
                required:
                - every
                type: object
              onPreempt:
                description: 'What becomes of a pod whose seat one of a higher priority gets: pause: its state is saved, and the pod in its place continues. kill:
                  it is deleted.'
                enum:
                - pause
                - kill
                type: string
              onRestoreFailure:
                description: 'What becomes of a pod whose artifact (kyb.ai/restore-from) can''t be had: start: it starts cold. fail: it waits, and fails.'
                enum:
                - start
                - fail
                type: string
            required:
            - selector
            type: object
            x-kubernetes-validations:
            - message: it says nothing; write turn, idle, schedule, snapshots, onPreempt or onRestoreFailure
              rule: has(self.turn) || has(self.idle) || has(self.onPreempt) || has(self.onRestoreFailure) || has(self.snapshots) || (has(self.schedule) && self.schedule.size()
                > 0)
          status:
            description: What comes of it, as the controller sees it. Agents act without it.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              matched:
                description: Pods with seats that it selects.
                format: int32
                minimum: 0
                type: integer
              governed:
                description: Those of them that no other policy governs.
                format: int32
                minimum: 0
                type: integer
              snapshots:
                description: Its snapshots.
                properties:
                  total:
                    description: How many there are.
                    format: int32
                    minimum: 0
                    type: integer
                  underWay:
                    description: How many are being made.
                    format: int32
                    minimum: 0
                    type: integer
                  newest:
                    format: date-time
                    type: string
                type: object
              conditions:
                description: 'Ready: whether it counts; the reason says why not.'
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
    - name: Complete
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].status
    - name: State
      type: string
      jsonPath: .status.conditions[?(@.type=="Complete")].reason
    - name: Bytes
      type: integer
      priority: 1
      jsonPath: .status.artifact.bytes
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
        description: Asks once that a pod with a seat is parked, woken, kept as a snapshot, or made ready to go. Who creates it must have the right to do the like
          to the pod itself. Deleting it cancels what is not done yet; an artifact that was made stays.
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
                description: The pod, of this namespace, by its name.
                maxLength: 253
                minLength: 1
                pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                type: string
              mode:
                description: 'Park: its seat leaves GPU memory and rests until the next request. Snapshot: an artifact of its state is kept while it runs on. Evict:
                  it is parked and stays so, until its pod is deleted or it is woken by hand. Wake: it comes back into GPU memory in its turn, without a request;
                  that takes an eviction back.'
                enum:
                - Park
                - Snapshot
                - Evict
                - Wake
                type: string
              tier:
                description: 'Where its state is to rest, or its artifact to be kept. Park: ram, unless the node moves it on. Snapshot: the deepest tier that the
                  node has and the pod lets it. Evict: where it is parked; with object it outlives its node.'
                enum:
                - ram
                - nvme
                - object
                type: string
              successor:
                description: 'Of mode Evict: where the pod that takes its place is bound, if that pod fits there then; else it goes wherever it fits.'
                properties:
                  node:
                    description: A node.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  group:
                    description: 'A group of its GPUs; absent: any.'
                    maxLength: 63
                    type: string
                required:
                - node
                type: object
              deadlineSeconds:
                description: Seconds from its creation until it is cancelled, if it isn't done by then.
                format: int32
                maximum: 86400
                minimum: 1
                type: integer
                default: 600
              ttlSecondsAfterFinished:
                description: 'Seconds until it is deleted, once it is done or failed; absent: never.'
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
            description: How far it is.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              podUID:
                description: 'The pod that it is about: another one of the name is none of it.'
                maxLength: 128
                type: string
              owner:
                description: 'What makes another pod in its place: the UID of its controller, and which of its pods it is where that matters, as in a StatefulSet.'
                maxLength: 400
                type: string
              node:
                description: The pod's node.
                maxLength: 253
                type: string
              operation:
                description: The operation on the node's agent.
                maxLength: 63
                type: string
              startTime:
                format: date-time
                type: string
              completionTime:
                format: date-time
                type: string
              artifact:
                description: What came of it.
                properties:
                  name:
                    description: 'Of a snapshot: the artifact, for kyb.ai/restore-from.'
                    maxLength: 400
                    type: string
                  tier:
                    enum:
                    - ram
                    - nvme
                    - object
                    type: string
                  bytes:
                    description: Its size there.
                    format: int64
                    minimum: 0
                    type: integer
                type: object
              bytesDone:
                description: 'Of a snapshot: bytes of its artifact that are where it is to be kept.'
                format: int64
                minimum: 0
                type: integer
              bytesTotal:
                description: The size of its artifact.
                format: int64
                minimum: 0
                type: integer
              estimatedCompletionTime:
                description: When the rest is expected to be there.
                format: date-time
                type: string
              scaledUpTime:
                description: 'Of a Deployment''s pod that was scaled to zero: when it was scaled up.'
                format: date-time
                type: string
              conditions:
                description: 'Complete: True once it is done; the reason says why not.'
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
    additionalPrinterColumns:
    - name: Ready
      type: string
      jsonPath: .status.conditions[?(@.type=="Ready")].status
    - name: Product
      type: string
      jsonPath: .status.gpus[0].product
    - name: Driver
      type: string
      jsonPath: .status.driver.version
    - name: Agent
      type: string
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
                description: How containers get their GPUs. With nodes, a container gets those of its device ID, so that pods of one group only may be under way to
                  the node at a time.
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
                      description: NUMA node, or -1 where the platform has none.
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
                    description: What the node has available, told again when it changes by 5 %; 0 until known.
                    format: int64
                    minimum: 0
                    type: integer
                type: object
              tiers:
                description: Where the states of parked seats may be, from the fastest to the deepest.
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
                      description: 0 is no limit.
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
                description: Artifacts that lie on the node, or that it has put into the object store; of more the newest.
                items:
                  description: A saved state, and where it lies.
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
                      description: Where the state of a parked seat is.
                      enum:
                      - ram
                      - nvme
                      - object
                      type: string
                    savedBytes:
                      description: The size of its artifact, if it is offloaded.
                      format: int64
                      minimum: 0
                      type: integer
                    heldBytes:
                      description: The GPU memory that it was seen to hold, rounded up by a fifth at most.
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
                      description: When the seat is used. 24 numbers, of the hours of the day in UTC; newer days weigh more, -1 is an hour that nobody has looked
                        at yet.
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
                          description: How often per hour demand began after quiet.
                          items:
                            minimum: -1
                            type: number
                          maxItems: 24
                          minItems: 24
                          type: array
                        recentBusy:
                          description: The same of about the last quarter of an hour.
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
                      description: What somebody asked for and is under way, such as park, evict, save or move.
                      maxLength: 63
                      type: string
                    movable:
                      description: Parked; a GPU of its group is lost.
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
              usage:
                description: What namespaces with a Share have used, told now and then.
                items:
                  description: What a namespace with a Share has used of the node.
                  properties:
                    namespace:
                      maxLength: 63
                      minLength: 1
                      type: string
                    used:
                      description: What a namespace has used since a window of its Share began.
                      properties:
                        since:
                          format: date-time
                          type: string
                        gpuSeconds:
                          description: Of GPUs that its seats had.
                          minimum: 0
                          type: number
                        parkedGiBHours:
                          description: GiB of RAM that its parked seats took, times hours.
                          minimum: 0
                          type: number
                        wakes:
                          description: How often its seats woke.
                          format: int64
                          minimum: 0
                          type: integer
                        parkedBytes:
                          description: What its parked seats take of all nodes' RAM now.
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
        description: Says what the namespace of its name gets of GPUs that seats of several namespaces want, and how much it may use of GPUs and of RAM. An administrator's.
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
            description: What the namespace gets, and how much it may use.
            properties:
              weight:
                description: Against those of other namespaces whose seats always want the same GPUs; 100 for a namespace without a Share. Its seats divide what it
                  gets by their own weights.
                format: int32
                maximum: 100000
                minimum: 1
                type: integer
                default: 100
              window:
                description: 'How long use is counted before it is counted from zero again, from 1m to 744h. Windows begin at multiples of it since 1970, UTC: 24h
                  is a day.'
                maxLength: 32
                pattern: ^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+$
                type: string
                default: 24h
              quota:
                description: How much the namespace may use.
                properties:
                  gpuSeconds:
                    description: 'Seconds in which its seats are active, times their GPUs, in each window. A namespace that has used them up comes after others: its
                      requests still wake a seat.'
                    format: int64
                    minimum: 0
                    type: integer
                  parkedGiBPerNode:
                    description: GiB of each node's RAM for states of its parked seats. What is beyond leaves RAM for the next tier, as far as kyb.ai/park-tier lets
                      it.
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
            description: What comes of it, as the controller sees it.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              used:
                description: Since the window began, as nodes have told by now.
                properties:
                  since:
                    format: date-time
                    type: string
                  gpuSeconds:
                    description: Of GPUs that its seats had.
                    minimum: 0
                    type: number
                  parkedGiBHours:
                    description: GiB of RAM that its parked seats took, times hours.
                    minimum: 0
                    type: number
                  wakes:
                    description: How often its seats woke.
                    format: int64
                    minimum: 0
                    type: integer
                  parkedBytes:
                    description: What its parked seats take of all nodes' RAM now.
                    format: int64
                    minimum: 0
                    type: integer
                type: object
              conditions:
                description: 'WithinQuota: whether the namespace is; the reason says why not.'
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
        description: Asks once that a pod goes to another group or node, that a node is emptied, or that pods which wait get room. The plan and its cost stand in
          the status; nothing is done before somebody approves it. Of namespace kyb-system it may move pods of all namespaces, elsewhere those of its own. Deleting
          it has no more steps begin.
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
            description: What is asked for, and which plan may be carried out.
            properties:
              move:
                description: A pod is to go elsewhere.
                properties:
                  pod:
                    description: The pod, of this namespace.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  to:
                    description: Where it is to go. No other pod is moved for it.
                    properties:
                      node:
                        description: 'A node; absent: the pod''s own.'
                        maxLength: 253
                        pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                        type: string
                      group:
                        description: 'A group of the node; absent: any where it fits.'
                        maxLength: 63
                        type: string
                    type: object
                    x-kubernetes-validations:
                    - message: name a node, a group, or both
                      rule: has(self.node) || has(self.group)
                required:
                - pod
                - to
                type: object
              emptyNode:
                description: All pods are to leave this node.
                maxLength: 253
                minLength: 1
                pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                type: string
              defragment:
                description: Pods that wait are to get room.
                properties:
                  pod:
                    description: 'The pod, of this namespace, that is to get room; absent: all that wait.'
                    maxLength: 253
                    type: string
                type: object
              budget:
                description: What the plan may cost.
                properties:
                  moves:
                    description: How many pods may be moved.
                    format: int32
                    maximum: 100
                    minimum: 1
                    type: integer
                    default: 10
                  seconds:
                    description: 'How long all moves together may take; absent: any time.'
                    format: int32
                    minimum: 0
                    type: integer
                type: object
              approvedPlan:
                description: 'status.plan.hash, written by somebody with the verb `approve` for RebalanceRequests: has that plan carried out. Leave it out when you
                  create one. It may be written again for a plan that has changed, until status.startTime is there.'
                maxLength: 64
                type: string
              deadlineSeconds:
                description: Seconds from its creation in which a plan has to be approved, and from then on in which steps begin.
                format: int32
                maximum: 86400
                minimum: 1
                type: integer
                default: 3600
              ttlSecondsAfterFinished:
                description: 'Seconds until it is deleted, once it is done or failed; absent: never.'
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
            description: How far it is.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              plan:
                description: What is to be done, and its cost.
                properties:
                  hash:
                    description: 'The same for the same steps: what is approved.'
                    maxLength: 64
                    type: string
                  moves:
                    description: How many pods are moved.
                    format: int64
                    minimum: 0
                    type: integer
                  seconds:
                    description: What that is expected to take.
                    minimum: 0
                    type: number
                  bytes:
                    description: How much is moved.
                    format: int64
                    minimum: 0
                    type: integer
                  message:
                    description: The plan in a sentence.
                    maxLength: 1024
                    type: string
                  steps:
                    description: In the order of their execution.
                    items:
                      description: A step.
                      properties:
                        kind:
                          description: 'move: it continues elsewhere. place: it waits, and is bound.'
                          enum:
                          - move
                          - suspend
                          - delete
                          - resume
                          - place
                          type: string
                        namespace:
                          description: The pod's namespace.
                          maxLength: 63
                          type: string
                        pod:
                          description: The pod.
                          maxLength: 253
                          type: string
                        uid:
                          description: Its UID.
                          maxLength: 128
                          type: string
                        from:
                          description: What it leaves.
                          properties:
                            node:
                              maxLength: 253
                              type: string
                            group:
                              maxLength: 63
                              type: string
                          type: object
                        to:
                          description: Where it goes.
                          properties:
                            node:
                              maxLength: 253
                              type: string
                            group:
                              maxLength: 63
                              type: string
                          type: object
                        bytes:
                          description: What is moved.
                          format: int64
                          minimum: 0
                          type: integer
                        seconds:
                          description: What that is expected to take.
                          minimum: 0
                          type: number
                        stage:
                          description: How far it is.
                          enum:
                          - Waiting
                          - Saving
                          - Leaving
                          - Arriving
                          - Done
                          type: string
                        successor:
                          description: The UID of the pod that continues.
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
                description: Pods that continue where they are to.
                format: int64
                minimum: 0
                type: integer
              bytesDone:
                description: What was moved.
                format: int64
                minimum: 0
                type: integer
              startTime:
                description: When its first step began.
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
                description: 'Complete: True once it is done; the reason says why not.'
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
    - jsonPath: .status.pod
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
        description: 'Asks once for a pod that continues from an artifact: in the place of the artifact''s pod, or as a copy. Who creates it must have the right to
          create pods in the namespace, and to restore the artifact. A clone goes with it; other pods stay.'
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
                description: 'What is restored: an artifact by its name, or the newest one of a pod.'
                properties:
                  artifact:
                    description: The Artifact, by its name.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  pod:
                    description: The pod whose newest artifact is meant, by its name.
                    maxLength: 253
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                    type: string
                  namespace:
                    description: 'The namespace of it, if it is another one: takes an ArtifactGrant there.'
                    maxLength: 63
                    minLength: 1
                    pattern: ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$
                    type: string
                type: object
                x-kubernetes-validations:
                - message: name either an artifact or a pod
                  rule: has(self.artifact) != has(self.pod)
              as:
                description: 'successor: it takes that pod''s place, once, when that one has stopped. template: a copy. clone: a copy to look at, without network,
                  which ends with this request.'
                enum:
                - successor
                - template
                - clone
                type: string
              stopped:
                description: 'Of a clone: not one instruction of it is executed.'
                type: boolean
              podName:
                description: The pod to make; as the request, if unset.
                maxLength: 253
                minLength: 1
                pattern: ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
                type: string
              nodeSelector:
                additionalProperties:
                  maxLength: 63
                  type: string
                description: Labels of the nodes that it may come to.
                maxProperties: 16
                type: object
              template:
                description: The pod to make, with metadata and spec, as in a Deployment. Without it one like the artifact's pod is made, as long as that is there.
                type: object
                x-kubernetes-preserve-unknown-fields: true
              deadlineSeconds:
                description: Seconds from its creation until it has failed, if it isn't done by then.
                format: int32
                maximum: 86400
                minimum: 1
                type: integer
                default: 600
              ttlSecondsAfterFinished:
                description: 'Seconds until it is deleted, and a clone with it, once it is done or failed; absent: never.'
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
          status:
            description: How far it is.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              artifact:
                description: The artifact, as kyb.ai/restore-from names it.
                maxLength: 400
                type: string
              sourceUID:
                description: The pod whose state it is.
                maxLength: 128
                type: string
              pod:
                description: The pod that is made.
                maxLength: 253
                type: string
              podUID:
                description: 'It, once it is there: no second one is made.'
                maxLength: 128
                type: string
              node:
                description: Its node.
                maxLength: 253
                type: string
              startTime:
                format: date-time
                type: string
              completionTime:
                format: date-time
                type: string
              conditions:
                description: 'Complete: True once it is done; the reason says why not.'
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
        description: 'A workload that has started and is warmed up, of which pods start as copies, by the annotation kyb.ai/restore-from: template/NAME. The controller
          makes one pod of it, has its state kept in the object store, and ends the pod; again when the image, the spec, or the GPUs'' product or driver change. Who
          writes it must have the right to create the namespace''s pods and to run commands in them.'
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
            description: The pod, and what it does before its state is kept.
            properties:
              template:
                description: The pod, as in a Deployment.
                properties:
                  spec:
                    description: The pod's spec, as of those that ask for it.
                    type: object
                    x-kubernetes-preserve-unknown-fields: true
                  metadata:
                    description: What the pod's metadata may say.
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
                description: 'Where it takes requests; absent: the first port of the container that has the seat.'
                format: int32
                maximum: 65535
                minimum: 1
                type: integer
              readyWhen:
                description: When warmUp begins, besides the pod's own readiness probe.
                properties:
                  get:
                    description: The path that is answered with 2xx from then on.
                    maxLength: 1024
                    minLength: 1
                    pattern: ^/[!-~]*$
                    type: string
                required:
                - get
                type: object
              warmUp:
                description: Requests, one after another; each must be answered 2xx.
                items:
                  description: One request.
                  properties:
                    get:
                      description: The path.
                      maxLength: 1024
                      minLength: 1
                      pattern: ^/[!-~]*$
                      type: string
                    post:
                      description: The path.
                      maxLength: 1024
                      minLength: 1
                      pattern: ^/[!-~]*$
                      type: string
                    body:
                      description: Posted as JSON.
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
                description: Until its state is kept, from the pod's creation.
                format: int32
                maximum: 86400
                minimum: 60
                type: integer
                default: 1800
            required:
            - template
            type: object
          status:
            description: How far it is. Written by the controller.
            properties:
              observedGeneration:
                format: int64
                minimum: 0
                type: integer
              builds:
                description: How many have been begun.
                format: int32
                minimum: 0
                type: integer
              artifact:
                description: What pods start from.
                properties:
                  name:
                    maxLength: 400
                    type: string
                  request:
                    description: The CheckpointRequest that had it kept.
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
                    description: What its pod ran on.
                    properties:
                      spec:
                        description: The hash of spec.
                        maxLength: 64
                        type: string
                      image:
                        description: The image's digest.
                        maxLength: 1024
                        type: string
                      product:
                        description: The GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Their driver.
                        maxLength: 64
                        type: string
                    type: object
                  madeFor:
                    description: What was wanted then.
                    properties:
                      spec:
                        description: The hash of spec.
                        maxLength: 64
                        type: string
                      image:
                        description: The image's digest.
                        maxLength: 1024
                        type: string
                      product:
                        description: The GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Their driver.
                        maxLength: 64
                        type: string
                    type: object
                required:
                - name
                - request
                type: object
              build:
                description: An artifact in the making.
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
                    description: How many before it came to nothing.
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
                        description: The hash of spec.
                        maxLength: 64
                        type: string
                      image:
                        description: The image's digest.
                        maxLength: 1024
                        type: string
                      product:
                        description: The GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Their driver.
                        maxLength: 64
                        type: string
                    type: object
                  madeFor:
                    description: What an artifact fits.
                    properties:
                      spec:
                        description: The hash of spec.
                        maxLength: 64
                        type: string
                      image:
                        description: The image's digest.
                        maxLength: 1024
                        type: string
                      product:
                        description: The GPUs.
                        maxLength: 256
                        type: string
                      driver:
                        description: Their driver.
                        maxLength: 64
                        type: string
                    type: object
                required:
                - number
                type: object
              conditions:
                description: 'Ready: whether pods start from its artifact; the reason says more.'
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
