BEGIN TRANSACTION;
CREATE TABLE artifacts (
        id TEXT NOT NULL PRIMARY KEY, namespace TEXT NOT NULL, digest TEXT NOT NULL,
        pod TEXT NOT NULL, pod_uid TEXT NOT NULL, container TEXT NOT NULL,
        model TEXT NOT NULL, size BIGINT NOT NULL, created_ms BIGINT NOT NULL, parent TEXT,
        facts TEXT NOT NULL, recorded_ms BIGINT NOT NULL);
INSERT INTO "artifacts" VALUES('default/seat-nvme@20261123T053846Z-50a6839f','default','17ca071aee4198e6aa18511e14244d06f00258c76f9d56ae8e88434b77363b7b','seat-nvme','6bb77245-9c78-4d73-a705-e59a2d567331','server','seat-nvme',19619757,1795412326000,NULL,'{"architecture":"x86_64","criu":"4.2.1","cuda":"13.0","driver":"580.95.05","gpu_count":1,"gpu_product":"NVIDIA H100 80GB HBM3","highest_pid":11,"image_digest":"sha256:39ac16911ae9db8dea6776288d87e13f0454becce0f59232671808a6d3344039","kernel":"6.18.44-fc-v669","kyb_init":"f4f09f5d3a0f5e4e4b150575d8c7a309f2249adc464413c3cebaef792f0d2244","spec_hash":"2ade8accc17ecb4b0a64c43ccd61e9b233079a6881a3a970565cb37670c96b74"}',1795412326455);
INSERT INTO "artifacts" VALUES('default/seat-object@20261123T053847Z-1354c7dc','default','66edf8fcc2f8bff248e88b414bd539577521cbef595b6b383acc529052948222','seat-object','f63a546c-f8cf-4cc9-a50a-d5e1fe1583b4','server','seat-object',19595143,1795412327000,NULL,'{"architecture":"x86_64","criu":"4.2.1","cuda":"13.0","driver":"580.95.05","gpu_count":1,"gpu_product":"NVIDIA H100 80GB HBM3","highest_pid":11,"image_digest":"sha256:39ac16911ae9db8dea6776288d87e13f0454becce0f59232671808a6d3344039","kernel":"6.18.44-fc-v669","kyb_init":"f4f09f5d3a0f5e4e4b150575d8c7a309f2249adc464413c3cebaef792f0d2244","spec_hash":"45f74f63f377d8b74cd44f891178500124bb72da5907970323fd30939b26ac3b"}',1795412327137);
CREATE TABLE copies (
        artifact TEXT NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE,
        place TEXT NOT NULL, node TEXT NOT NULL, store TEXT NOT NULL,
        state TEXT NOT NULL, size BIGINT NOT NULL, told_ms BIGINT NOT NULL,
        created_ms BIGINT NOT NULL, PRIMARY KEY (artifact, place, node, store));
INSERT INTO "copies" VALUES('default/seat-nvme@20261123T053846Z-50a6839f','nvme','n1','','verified',19619757,1795412326455,1795412326000);
INSERT INTO "copies" VALUES('default/seat-object@20261123T053847Z-1354c7dc','object','','/tmp/tmpb8h4cmdd/objects','verified',19595143,1795412327281,1795412327000);
CREATE TABLE marks (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "marks" VALUES('schema','1');
INSERT INTO "marks" VALUES('settled','1795412319890');
CREATE TABLE pods (
        namespace TEXT NOT NULL, uid TEXT NOT NULL, version BIGINT NOT NULL,
        node TEXT NOT NULL, token BIGINT NOT NULL, holder TEXT NOT NULL,
        until_ms BIGINT NOT NULL,
        stopped TEXT NOT NULL, stopped_by TEXT NOT NULL, stopped_why TEXT NOT NULL,
        successor TEXT NOT NULL, successor_node TEXT NOT NULL, artifact TEXT NOT NULL,
        settled BOOLEAN NOT NULL, ended BOOLEAN NOT NULL, PRIMARY KEY (namespace, uid));
INSERT INTO "pods" VALUES('default','6bb77245-9c78-4d73-a705-e59a2d567331',1,'n1',1795412326433,'n1',1795412386433,'','','','','','',1,0);
INSERT INTO "pods" VALUES('default','f63a546c-f8cf-4cc9-a50a-d5e1fe1583b4',1,'n1',1795412327130,'n1',1795412387130,'','','','','','',1,0);
CREATE INDEX pods_of_successor ON pods (successor);
CREATE INDEX artifacts_newest ON artifacts (created_ms, id);
CREATE INDEX artifacts_of_namespace ON artifacts (namespace, created_ms, id);
CREATE INDEX artifacts_of_model ON artifacts (model, created_ms, id);
CREATE INDEX artifacts_of_pod ON artifacts (pod, created_ms, id);
CREATE INDEX artifacts_of_uid ON artifacts (pod_uid, created_ms, id);
CREATE INDEX copies_of_node ON copies (node, created_ms, artifact);
CREATE INDEX copies_of_place ON copies (place, created_ms, artifact);
CREATE INDEX copies_in_state ON copies (state, created_ms, artifact);
COMMIT;
