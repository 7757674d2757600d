# A Spark image for flows: PySpark with Java, and ddflow with compiled kernels, so that no task waits for a compiler.
# Build a separate image for your job, with the job in /app: FROM ddflow-spark, COPY job.py /app/
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
# Executors run as this user on Kubernetes; the cache of kernels must belong to the user who compiles and runs them.
RUN useradd --uid 185 --create-home spark && mkdir -p /ddflow/kernels /app && chown spark /ddflow/kernels /app
# Kubernetes starts drivers and executors with this script, which the package of PySpark lacks.  It also runs any other
# command.
COPY --from=apache/spark:4.1.1-python3 opt/entrypoint.sh /usr/local/bin/
USER 185
# Compiled kernels fit only the type of CPU that compiles them; a machine with another CPU compiles its own at each
# start.  For an image on several types of CPU, set the features that all of them have before this line:
# ENV NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
RUN ddflow warmup
WORKDIR /app
ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]
