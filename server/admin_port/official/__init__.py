"""`apache.rocketmq.v2.Admin`, RocketMQ's own admin service, on the admin port. Its answers carry a status in band."""
