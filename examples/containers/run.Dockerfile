# An image that runs `ddflow run`: a flow beside a volume with its state, metrics at port 9464.
#
#   docker build -f examples/containers/run.Dockerfile -t ddflow-run .
#   docker run -v "$PWD/flow.py:/app/flow.py:ro" -v ddflow-state:/state -p 9464:9464 -e PGPASSWORD ddflow-run \
#     --from 'shop=postgres://me@db/shop' --to by_city=postgres://me@db/shop#by_city --follow
#
# SIGTERM ends it behind the epoch that is being made, so give it time: docker stop -t 30.
# A folder in place of the volume must belong to user 1000.
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
# The kernels, so that no first step waits for a compiler.  They are of the CPU that compiles them; another one compiles
# its own at each start.  For one image on several, set before this line what all of them have, such as
# ENV NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
RUN ddflow warmup
WORKDIR /app
VOLUME /state
EXPOSE 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["ddflow", "run", "flow.py", "--state", "/state/flow", "--metrics", "0.0.0.0:9464"]
