# The simulator without a compiler: docker build -t llmsim . && docker run --rm -v "$PWD:/work" llmsim --help
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ zlib1g-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[plot,timeline,serve]" && rm -r /wheels \
    && useradd --create-home llmsim && mkdir /work && chown llmsim /work
USER llmsim
WORKDIR /work
ENTRYPOINT ["llmsim"]
CMD ["doctor"]
