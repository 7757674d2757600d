# An image for `ddflow run`: it runs a flow, keeps the state in a volume, and serves metrics at port 9464.
#
#   docker build -f examples/containers/run.Dockerfile -t ddflow-run .
#   docker run -v "$PWD/flow.py:/app/flow.py:ro" -v ddflow-state:/state -p 9464:9464 -e PGPASSWORD ddflow-run \
#     --from 'shop=postgres://me@db/shop' --to by_city=postgres://me@db/shop#by_city --follow
#
# SIGTERM ends the run after the current epoch, so give it time: docker stop -t 30.
# If you mount a folder instead of the volume, it must belong to user 1000.
FROM python:3.12-slim AS build
COPY . /src
RUN python -m venv /ddflow/env && /ddflow/env/bin/pip install --no-cache-dir \
    "/src[shell,postgres,kafka,duckdb,delta,iceberg,s3,metrics]"

FROM python:3.12-slim
COPY --from=build /ddflow/env /ddflow/env
ENV PATH=/ddflow/env/bin:$PATH PYTHONUNBUFFERED=1 DDFLOW_CACHE_DIR=/ddflow/kernels
RUN useradd --uid 1000 --create-home ddflow && mkdir -p /state /app /ddflow/kernels \
    && chown ddflow /state /app /ddflow/kernels
USER ddflow
# Compile the kernels, so that the first step does not wait for a compiler.  Compiled kernels fit only the type of CPU
# that compiles them; a machine with another CPU compiles its own at each start.  For an image on several types of CPU,
# set the features that all of them have before this line: ENV NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
RUN ddflow warmup
WORKDIR /app
VOLUME /state
EXPOSE 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["ddflow", "run", "flow.py", "--state", "/state/flow", "--metrics", "0.0.0.0:9464"]
