#!/bin/bash
# What Spark starts in its pods: `driver` with the arguments of spark-submit, or `executor`, which is told everything by
# the environment. Anything else is run as it stands.
set -eu

case "${1:-}" in
driver)
    shift
    set -- spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor)
    options=()
    # Spark numbers them from 0 on, without a gap
    for ((number = 0; ; number++)); do
        name="SPARK_JAVA_OPT_$number"
        [ -n "${!name+given}" ] || break
        options+=("${!name}")
    done
    conf="${SPARK_CONF_DIR:-$SPARK_HOME/conf}"
    set -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$conf:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac

# as the first process of the pod it has to wait for the orphans of Spark's Python workers
exec tini -s -- "$@"
