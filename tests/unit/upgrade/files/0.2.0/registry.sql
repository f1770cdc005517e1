BEGIN TRANSACTION;
CREATE TABLE artifacts (
        id TEXT NOT NULL PRIMARY KEY, namespace TEXT NOT NULL, digest TEXT NOT NULL,
        pod TEXT NOT NULL, pod_uid TEXT NOT NULL, container TEXT NOT NULL,
        model TEXT NOT NULL, size BIGINT NOT NULL, created_ms BIGINT NOT NULL, parent TEXT,
        facts TEXT NOT NULL, recorded_ms BIGINT NOT NULL);
INSERT INTO "artifacts" VALUES('default/old-nvme@20261123T090212Z-917b6ed2','default','4553321b200cc75896163ed7c9a3974961bad0b46a58d23cc0dd3a800473ddb4','old-nvme','2a26aad6-461d-4e90-9035-b522c670ca46','server','old-nvme',19612017,1795424532000,NULL,'{"architecture":"x86_64","criu":"4.2.1","cuda":"13.0","driver":"580.95.05","gpu_count":1,"gpu_product":"NVIDIA H100 80GB HBM3","highest_pid":10,"image_digest":"sha256:39ac16911ae9db8dea6776288d87e13f0454becce0f59232671808a6d3344039","kernel":"6.18.44-fc-v669","kyb_init":"11d2daa73ed555d26ba9d9d60dbcb73edc21a782177c956c1d8abc6347aef174","spec_hash":"e179de4dac235276d6df10b240252e3a6d6586015e3a29a29993afaa115a601c"}',1795424532817);
INSERT INTO "artifacts" VALUES('default/old-object@20261123T090214Z-a9169c34','default','9159e3074fbd427d1e1ba64001bc80340df3fd056462f254b05857dd5f0ef226','old-object','6b77cea8-1874-42eb-b568-fcbd6ccefe9a','server','old-object',19607921,1795424534000,NULL,'{"architecture":"x86_64","criu":"4.2.1","cuda":"13.0","driver":"580.95.05","gpu_count":1,"gpu_product":"NVIDIA H100 80GB HBM3","highest_pid":10,"image_digest":"sha256:39ac16911ae9db8dea6776288d87e13f0454becce0f59232671808a6d3344039","kernel":"6.18.44-fc-v669","kyb_init":"11d2daa73ed555d26ba9d9d60dbcb73edc21a782177c956c1d8abc6347aef174","spec_hash":"67bd98bce64c1c90b5c13103d518ce38a7fc6ccc677213c6b0372ea8f64d69d3"}',1795424534870);
CREATE TABLE copies (
        artifact TEXT NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE,
        place TEXT NOT NULL, node TEXT NOT NULL, store TEXT NOT NULL,
        state TEXT NOT NULL, size BIGINT NOT NULL, told_ms BIGINT NOT NULL,
        created_ms BIGINT NOT NULL, PRIMARY KEY (artifact, place, node, store));
INSERT INTO "copies" VALUES('default/old-nvme@20261123T090212Z-917b6ed2','nvme','n1','','verified',19612017,1795424532817,1795424532000);
INSERT INTO "copies" VALUES('default/old-object@20261123T090214Z-a9169c34','object','','/tmp/tmpphfjrh98/objects','verified',19607921,1795424535370,1795424534000);
CREATE TABLE marks (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "marks" VALUES('schema','1');
INSERT INTO "marks" VALUES('settled','1795424508616');
CREATE TABLE namespace_keys (
        id TEXT NOT NULL PRIMARY KEY, namespace TEXT NOT NULL, uid TEXT NOT NULL,
        made_ms BIGINT NOT NULL, wrapped_by TEXT NOT NULL, wrapped TEXT NOT NULL,
        shred_ms BIGINT NOT NULL, shredded_ms BIGINT NOT NULL, shred_why TEXT NOT NULL);
CREATE TABLE namespaces (
        name TEXT NOT NULL, uid TEXT NOT NULL, seen_ms BIGINT NOT NULL,
        gone_ms BIGINT NOT NULL, PRIMARY KEY (name, uid));
CREATE TABLE pods (
        namespace TEXT NOT NULL, uid TEXT NOT NULL, version BIGINT NOT NULL,
        node TEXT NOT NULL, token BIGINT NOT NULL, holder TEXT NOT NULL,
        until_ms BIGINT NOT NULL,
        stopped TEXT NOT NULL, stopped_by TEXT NOT NULL, stopped_why TEXT NOT NULL,
        successor TEXT NOT NULL, successor_node TEXT NOT NULL, artifact TEXT NOT NULL,
        settled BOOLEAN NOT NULL, ended BOOLEAN NOT NULL, PRIMARY KEY (namespace, uid));
INSERT INTO "pods" VALUES('default','2a26aad6-461d-4e90-9035-b522c670ca46',1,'n1',1795424532797,'n1',1795424592797,'','','','','','',1,0);
INSERT INTO "pods" VALUES('default','6b77cea8-1874-42eb-b568-fcbd6ccefe9a',1,'n1',1795424534842,'n1',1795424594842,'','','','','','',1,0);
CREATE TABLE writers (
    artifact TEXT NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE, node TEXT NOT NULL,
    token BIGINT NOT NULL, PRIMARY KEY (artifact, node));
INSERT INTO "writers" VALUES('default/old-nvme@20261123T090212Z-917b6ed2','n1',1795424532797);
INSERT INTO "writers" VALUES('default/old-object@20261123T090214Z-a9169c34','n1',1795424534842);
CREATE INDEX pods_of_successor ON pods (successor);
CREATE INDEX artifacts_newest ON artifacts (created_ms, id);
CREATE INDEX artifacts_of_namespace ON artifacts (namespace, created_ms, id);
CREATE INDEX artifacts_of_model ON artifacts (model, created_ms, id);
CREATE INDEX artifacts_of_pod ON artifacts (pod, created_ms, id);
CREATE INDEX artifacts_of_uid ON artifacts (pod_uid, created_ms, id);
CREATE INDEX copies_of_node ON copies (node, created_ms, artifact);
CREATE INDEX copies_of_place ON copies (place, created_ms, artifact);
CREATE INDEX copies_in_state ON copies (state, created_ms, artifact);
CREATE INDEX keys_of_namespace ON namespace_keys (namespace, uid, made_ms, id);
CREATE INDEX artifacts_twice ON artifacts (id, namespace, digest, pod, pod_uid, container, model, size, created_ms, parent, facts, recorded_ms);
CREATE INDEX copies_twice ON copies (artifact, place, node, store, state, size, told_ms, created_ms);
CREATE INDEX pods_twice ON pods (namespace, uid, version, node, token, holder, until_ms, stopped, stopped_by, stopped_why, successor, successor_node, artifact, settled, ended);
CREATE INDEX marks_twice ON marks (name, value);
COMMIT;
