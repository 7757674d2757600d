# A Spark image for flows: PySpark with Java, ddflow, and its kernels compiled, so that no task waits for a compiler.
#
#   docker build -f examples/containers/spark.Dockerfile -t ddflow-spark .
#   spark-submit --master k8s://... --conf spark.kubernetes.container.image=ddflow-spark \
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
USER 185
RUN ddflow warmup
WORKDIR /app
