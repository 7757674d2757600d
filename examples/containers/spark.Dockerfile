# A Spark image for flows: PySpark with Java, ddflow, and its kernels compiled, so that no task waits for a compiler.
# Your job goes to /app in an image of its own: FROM ddflow-spark, COPY job.py /app/
#
#   docker build -f examples/containers/spark.Dockerfile -t ddflow-spark .
#   spark-submit --master k8s://... --deploy-mode cluster --conf spark.kubernetes.container.image=my-job \
#     --conf spark.python.daemon.module=spark_bridge.daemon local:///app/job.py
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir "/src[spark,duckdb,kafka,postgres,delta,iceberg,s3,metrics,shell]" && rm -rf /src
ENV SPARK_HOME=/usr/local/lib/python3.12/site-packages/pyspark PYSPARK_PYTHON=python3 DDFLOW_CACHE_DIR=/ddflow/kernels
ENV PATH=$SPARK_HOME/bin:$PATH
# Executors run as this user on Kubernetes; a cache of kernels belongs to the one who compiles and runs them.
RUN useradd --uid 185 --create-home spark && mkdir -p /ddflow/kernels /app && chown spark /ddflow/kernels /app
# Kubernetes starts drivers and executors by this script, which PySpark's package lacks.  It runs any other command.
COPY --from=apache/spark:4.1.1-python3 opt/entrypoint.sh /usr/local/bin/
USER 185
# Kernels are of the CPU that compiles them; another one compiles its own at each start.  For one image on several, set
# before this line what all of them have, such as ENV NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
RUN ddflow warmup
WORKDIR /app
ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]
