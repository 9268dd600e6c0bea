"""Well-known public applications, applied on a real dockerd: the front page shows the answers of all parts.

The files have the services, names, ports and settings of the applications. The programs are stand-ins: each part is
a small web server that shows its name, the lines that it stores, and the answers of the parts that it reads from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components.docker import RunningDocker
from tests.components.image import busybox_images
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.test_foreign_files import mandor

SERVE = b"""
mkdir -p /www/cgi-bin
cp /app/page /www/cgi-bin/index.cgi
cp /app/put /www/cgi-bin/put
chmod 755 /www/cgi-bin/*
exec httpd -f -p "$1" -h /www
"""
FETCH_ALL = b"""# Fetches from every address of a name.
for address in $(awk -v name="${1%%:*}" '{for (i = 2; i <= NF; i++) if ($i == name) print $1}' /etc/hosts); do
  wget -q -O - "http://$address:${1#*:}"
done
"""
PAGE = b"""#!/bin/sh
printf 'Content-Type: text/plain\\r\\n\\r\\n'
echo "part $PART"
cat "$DATA/lines" 2>/dev/null
for each in $READS; do wget -q -O - "http://$each" || echo "no answer of $each"; done
for each in $READS_ALL; do sh /app/fetch-all "$each"; done
"""
PUT = b"""#!/bin/sh
echo "$QUERY_STRING" >> "$DATA/lines"
printf 'Content-Type: text/plain\\r\\n\\r\\nstored\\n'
"""
WORKER = """
until wget -q -O - http://redis:6379 | grep cats; do sleep 0.2; done
until wget -q -O - 'http://db:5432/cgi-bin/put?cats+counted'; do sleep 0.2; done
exec sleep 100000
"""
STAND_INS = {
    "vote": ("80", "READS='redis:6379/cgi-bin/put?cats redis:6379'"),
    "redis": ("6379", ""),
    "postgres": ("5432", "DATA=/var/lib/postgresql/data"),
    "result": ("80", "READS=db:5432"),
    "nginx": ("80", "READS=flask-app:8000"),
    "flask": ("8000", "READS=mysql:3306"),
    "mysql": ("3306", "DATA=/var/lib/mysql"),
    "wordpress": ("80", 'READS="$WORDPRESS_DB_HOST/cgi-bin/put?$WORDPRESS_DB_NAME $WORDPRESS_DB_HOST"'),
    "productpage": ("9080", "READS=details:9080 READS_ALL=reviews:9080"),
    "details": ("9080", ""),
    "reviews-v1": ("9080", ""),
    "reviews-v2": ("9080", "READS=ratings:9080"),
    "reviews-v3": ("9080", "READS=ratings:9080"),
    "ratings": ("9080", ""),
    "guestbook": ("80", "READS='redis-leader:6379/cgi-bin/put?signed redis-follower:6379'"),
    "redis-follower": ("6379", "READS=redis-leader:6379"),
    "counter": ("9001", ""),
    "dashboard": ("9002", 'READS="$COUNTING_SERVICE"'),
    "boutique": ("8080", 'READS="$PRODUCT_CATALOG_SERVICE_ADDR $CART_SERVICE_ADDR $CHECKOUT_SERVICE_ADDR"'),
    "catalog": ("3550", ""),
    "cart": ("7070", 'READS="$REDIS_ADDR"'),
    "checkout": ("5050", 'READS="$SHIPPING_SERVICE_ADDR"'),
    "shipping": ("50051", ""),
    "socks": ("8079", "READS='catalogue carts'"),
    "catalogue": ("80", "READS=catalogue-db:3306"),
    "carts": ("80", "READS=carts-db:27017"),
    "mongo": ("27017", ""),
    "gitea": ("3000", 'READS="$GITEA__database__HOST/cgi-bin/put?$GITEA__database__NAME $GITEA__database__HOST"'),
    "django": ("8000", 'READS="$(echo ${DATABASE_URL#*@} | cut -d/ -f1):5432 ${REDIS_URL#redis://}"'),
    "front": ("80", "READS=web:8000"),
}
"""Port and settings of the stand-in for each image."""


def image(name: str) -> str:
    return f"mandor.test/apps/{name}:1"


def images() -> bytes:
    """An archive of all images."""
    files = {"app/serve": SERVE, "app/fetch-all": FETCH_ALL, "app/page": PAGE, "app/put": PUT}
    scripts = {
        name: f"export DATA=/tmp PART={name} {settings}; exec sh /app/serve {port}"
        for name, (port, settings) in STAND_INS.items()
    }
    configs = {image(name): {"Cmd": ["sh", "-c", script]} for name, script in {**scripts, "worker": WORKER}.items()}
    return busybox_images(configs, files)


VOTING = f"""\
services:
  vote:
    image: {image("vote")}
    depends_on: {{redis: {{condition: service_healthy}}}}
    ports: ["PORT-1:80"]
    networks: [front-tier, back-tier]
    stop_grace_period: 1s
  result:
    image: {image("result")}
    depends_on: {{db: {{condition: service_healthy}}}}
    ports: ["PORT-2:80"]
    networks: [front-tier, back-tier]
    stop_grace_period: 1s
  worker:
    image: {image("worker")}
    depends_on: {{redis: {{condition: service_healthy}}, db: {{condition: service_healthy}}}}
    networks: [back-tier]
    stop_grace_period: 1s
  redis:
    image: {image("redis")}
    healthcheck: {{test: [CMD, wget, -q, -O, /dev/null, "http://127.0.0.1:6379"], interval: 1s, retries: 30}}
    networks: [back-tier]
    stop_grace_period: 1s
  db:
    image: {image("postgres")}
    environment: {{POSTGRES_USER: postgres, POSTGRES_PASSWORD: postgres}}
    volumes: ["db-data:/var/lib/postgresql/data"]
    healthcheck: {{test: "wget -q -O /dev/null http://127.0.0.1:5432", interval: 1s, retries: 30}}
    networks: [back-tier]
    stop_grace_period: 1s
volumes: {{db-data: }}
networks: {{front-tier: , back-tier: }}
"""
FLASK = f"""\
services:
  db:
    image: {image("mysql")}
    restart: always
    environment: [MYSQL_DATABASE=example]
    volumes: ["db-data:/var/lib/mysql"]
    healthcheck: {{test: "wget -q -O /dev/null http://127.0.0.1:3306", interval: 1s, retries: 30}}
    networks: {{backnet: {{aliases: [mysql]}}}}
    expose: [3306]
    stop_grace_period: 1s
  backend:
    image: {image("flask")}
    container_name: flask-app
    restart: always
    depends_on: {{db: {{condition: service_healthy}}}}
    expose: [8000]
    networks: [backnet, frontnet]
    stop_grace_period: 1s
  proxy:
    image: {image("nginx")}
    container_name: nginx
    restart: always
    depends_on: [backend]
    ports: ["PORT-1:80"]
    networks: [frontnet]
    stop_grace_period: 1s
volumes: {{db-data: {{}}}}
networks: {{backnet: {{}}, frontnet: {{}}}}
"""
WORDPRESS = f"""\
services:
  db:
    image: {image("mysql")}
    command: ["sh", "-c", "export DATA=/var/lib/mysql PART=$$MYSQL_DATABASE; exec sh /app/serve 3306"]
    volumes: ["db_data:/var/lib/mysql"]
    restart: always
    environment: [MYSQL_ROOT_PASSWORD=somewordpress, MYSQL_DATABASE=wordpress-tables, MYSQL_USER=wordpress]
    expose: [3306, 33060]
    stop_grace_period: 1s
  wordpress:
    image: {image("wordpress")}
    volumes: ["wp_data:/var/www/html"]
    ports: ["PORT-1:80"]
    restart: always
    environment: ["WORDPRESS_DB_HOST=db:3306", WORDPRESS_DB_USER=wordpress, WORDPRESS_DB_NAME=first-post]
    stop_grace_period: 1s
volumes: {{db_data: , wp_data: }}
"""


def service(name: str, port: int, selector: str, more: str = "", target: str | int = "") -> str:
    leads = f", targetPort: {target}" if target else ""
    return (
        f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\n"
        f"spec: {{{more}selector: {selector}, ports: [{{port: {port}, name: http{leads}}}]}}\n---\n"
    )


def deployment(name: str, labels: str, port: int, program: str, replicas: int = 1, env: str = "") -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {labels}}}
  template:
    metadata: {{labels: {labels}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: {image(program)}
        imagePullPolicy: IfNotPresent
        ports: [{{containerPort: {port}, name: web}}]
        env: [{env}]
---
"""


BOOKINFO = "".join(
    [
        *(service(name, 9080, f"{{app: {name}}}") for name in ("details", "ratings", "reviews")),
        service("productpage", 9080, "{app: productpage}", "type: LoadBalancer, "),
        *(
            deployment(f"{name}-v1", f"{{app: {name}, version: v1}}", 9080, name)
            for name in ("details", "ratings", "productpage")
        ),
        *(
            deployment(f"reviews-{version}", f"{{app: reviews, version: {version}}}", 9080, f"reviews-{version}")
            for version in ("v1", "v2", "v3")
        ),
    ]
)
GUESTBOOK = "".join(
    [
        deployment("redis-leader", "{app: redis, role: leader, tier: backend}", 6379, "redis"),
        service("redis-leader", 6379, "{app: redis, role: leader, tier: backend}"),
        deployment("redis-follower", "{app: redis, role: follower, tier: backend}", 6379, "redis-follower", 2),
        service("redis-follower", 6379, "{app: redis, role: follower, tier: backend}"),
        deployment("frontend", "{app: guestbook, tier: frontend}", 80, "guestbook", 3),
        service("frontend", 80, "{app: guestbook, tier: frontend}", "type: LoadBalancer, "),
    ]
)


def part(name: str, port: int, program: str, *, at: int = 0, replicas: int = 1, **env: str) -> str:
    """A Deployment with a Service of its name; `at`: the port of the Service, if it is another one."""
    labels = f"{{name: {name}}}"
    values = ", ".join(f"{{name: {key}, value: '{value}'}}" for key, value in env.items())
    target = "web" if at else ""
    return deployment(name, labels, port, program, replicas, values) + service(name, at or port, labels, target=target)


BOUTIQUE = "".join(
    [
        part(
            "frontend",
            8080,
            "boutique",
            at=80,
            replicas=2,
            PRODUCT_CATALOG_SERVICE_ADDR="productcatalogservice:3550",
            CART_SERVICE_ADDR="cartservice:7070",
            CHECKOUT_SERVICE_ADDR="checkoutservice:5050",
        ),
        service("frontend-external", 80, "{name: frontend}", "type: LoadBalancer, ", 8080),
        part("productcatalogservice", 3550, "catalog"),
        part("cartservice", 7070, "cart", REDIS_ADDR="redis-cart:6379"),
        part("redis-cart", 6379, "redis"),
        part("checkoutservice", 5050, "checkout", SHIPPING_SERVICE_ADDR="shippingservice:50051"),
        part("shippingservice", 50051, "shipping"),
    ]
)
SOCKS = "".join(
    [
        deployment("front-end", "{name: front-end}", 8079, "socks"),
        service("front-end", 80, "{name: front-end}", "type: NodePort, ", 8079),
        part("catalogue", 80, "catalogue"),
        part("catalogue-db", 3306, "mysql"),
        part("carts", 80, "carts"),
        part("carts-db", 27017, "mongo"),
    ]
)
GITEA = f"""\
networks: {{gitea: {{external: false}}}}
services:
  server:
    image: {image("gitea")}
    container_name: gitea
    environment:
    - USER_UID=1000
    - GITEA__database__DB_TYPE=mysql
    - GITEA__database__HOST=db:3306
    - GITEA__database__NAME=first-repository
    restart: always
    networks: [gitea]
    volumes: ["data:/data"]
    ports: ["PORT-1:3000", "PORT-2:22"]
    depends_on: [db]
    stop_grace_period: 1s
  db:
    image: {image("mysql")}
    restart: always
    environment: [MYSQL_ROOT_PASSWORD=gitea, MYSQL_DATABASE=gitea]
    networks: [gitea]
    volumes: ["mysql:/var/lib/mysql"]
    stop_grace_period: 1s
volumes: {{data: , mysql: }}
"""
DJANGO = f"""\
version: "3.8"
services:
  nginx:
    image: {image("front")}
    ports: ["PORT-1:80"]
    deploy: {{placement: {{constraints: ["node.platform.os == linux"]}}}}
    networks: [public]
    stop_grace_period: 1s
  web:
    image: {image("django")}
    environment:
      DATABASE_URL: postgres://django:secret@db/django
      REDIS_URL: redis://cache:6379
    expose: [8000]
    deploy: {{replicas: 3, update_config: {{parallelism: 1, order: start-first}}}}
    networks: [public, private]
    stop_grace_period: 1s
  db:
    image: {image("postgres")}
    volumes: ["pg:/var/lib/postgresql/data"]
    networks: [private]
    stop_grace_period: 1s
  cache:
    image: {image("redis")}
    deploy: {{endpoint_mode: vip}}
    networks: [private]
    stop_grace_period: 1s
volumes: {{pg: }}
networks: {{public: {{driver: overlay}}, private: {{driver: overlay}}}}
"""
COUNTDASH = f"""\
job "countdash" {{
  datacenters = ["dc1"]
  group "api" {{
    network {{ mode = "bridge" }}
    service {{
      name = "count-api"
      port = "9001"
    }}
    task "web" {{
      driver       = "docker"
      kill_timeout = "1s"
      config {{ image = "{image("counter")}" }}
    }}
  }}
  group "dashboard" {{
    network {{
      mode = "bridge"
      port "http" {{
        static = PORT-1
        to     = 9002
      }}
    }}
    service {{
      name = "count-dashboard"
      port = "http"
    }}
    task "dashboard" {{
      driver       = "docker"
      kill_timeout = "1s"
      env {{ COUNTING_SERVICE = "count-api.service.consul:9001" }}
      config {{
        image = "{image("dashboard")}"
        ports = ["http"]
      }}
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Application:
    file: str
    """Name of the file."""
    text: str
    pages: Mapping[str, set[str]]
    """Lines that the front page of each workload shows, in the order in which a user opens the pages."""


REVIEWS = {"part reviews-v1", "part reviews-v2", "part reviews-v3", "part ratings"}
APPLICATIONS = {
    "voting": Application(
        "compose.yaml",
        VOTING,
        {"vote": {"part vote", "part redis", "cats"}, "result": {"part result", "part postgres", "cats+counted"}},
    ),
    "flask": Application("compose.yaml", FLASK, {"proxy": {"part nginx", "part flask", "part mysql"}}),
    "wordpress": Application(
        "compose.yaml", WORDPRESS, {"wordpress": {"part wordpress", "part wordpress-tables", "first-post"}}
    ),
    "bookinfo": Application(
        "bookinfo.yaml", BOOKINFO, {"productpage-v1": {"part productpage", "part details"} | REVIEWS}
    ),
    "guestbook": Application(
        "guestbook.yaml", GUESTBOOK, {"frontend": {"part guestbook", "part redis", "part redis-follower", "signed"}}
    ),
    "boutique": Application(
        "boutique.yaml",
        BOUTIQUE,
        {
            "frontend": {"part boutique", "part catalog", "part cart", "part redis", "part checkout", "part shipping"},
        },
    ),
    "socks": Application(
        "socks.yaml",
        SOCKS,
        {"front-end": {"part socks", "part catalogue", "part mysql", "part carts", "part mongo"}},
    ),
    "gitea": Application("compose.yaml", GITEA, {"server": {"part gitea", "part mysql", "first-repository"}}),
    "django": Application(
        "stack.yaml", DJANGO, {"nginx": {"part front", "part django", "part postgres", "part redis"}}
    ),
    "countdash": Application("countdash.nomad", COUNTDASH, {"countdash": {"part dashboard", "part counter"}}),
}


NEED_DATA_PATHS = frozenset({"boutique", "socks"})
"""Applications with services on other ports than their tasks."""


@pytest.fixture(scope="module")
def docker_with_images(docker: RunningDocker) -> Iterator[RunningDocker]:
    docker.cli("load", data=images())
    yield docker
    docker.cli("image", "rm", "--force", *(image(name) for name in (*STAND_INS, "worker")))


@pytest.fixture(scope="module")
def cluster(docker_with_images: RunningDocker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("applications")) as running:
        running.start_server()
        running.start_agent("n1", engines=("all",), environ={"DOCKER_HOST": f"unix://{docker_with_images.socket}"})
        running.wait_nodes("n1")
        yield running


def front_page(cluster: Cluster, docker: RunningDocker, workload: str, namespace: str, chosen: set[int]) -> set[str]:
    """Return the lines of the page at the workload's published port: one of the chosen numbers, else any."""
    found = [
        port["host"]
        for each in cluster.items("instances", namespace=namespace)
        for port in each["status"].get("ports", ())
        if each["spec"]["workload"] == workload and port.get("host")
    ]
    fitting = [each for each in found if each in chosen] or found
    return set(docker.fetch("127.0.0.1", fitting[0]).splitlines()) if fitting else set()


@pytest.mark.real("docker")
@pytest.mark.req("S0-32")
@pytest.mark.parametrize("name", sorted(APPLICATIONS.keys() - NEED_DATA_PATHS))
def test_a_public_application_answers_over_http_with_all_its_parts(
    name: str, cluster: Cluster, docker_with_images: RunningDocker, tmp_path: Path
) -> None:
    application = APPLICATIONS[name]
    file = tmp_path / application.file
    first, second = free_port(), free_port()
    file.write_text(application.text.replace("PORT-1", str(first)).replace("PORT-2", str(second)))
    cluster.apply(f"kind: namespace\nname: {name}\nlevel: baseline\n")
    mandor(cluster, "apply", "-f", str(file), "-n", name, "--wait", "--timeout", "60s")
    for workload, wanted in application.pages.items():
        last: set[str] = set()

        def complete(workload: str = workload, wanted: set[str] = wanted) -> bool:
            nonlocal last
            last = front_page(cluster, docker_with_images, workload, name, {first, second})
            return wanted <= last

        try:
            eventually(f"the page of {workload} shows all parts", complete)
        except AssertionError as error:
            raise AssertionError(f"missing: {sorted(wanted - last)}; shown: {sorted(last)}") from error
    mandor(cluster, "delete", "-f", str(file), "-n", name, "--volumes", "--wait", "--timeout", "60s")
    assert not cluster.items("instances", namespace=name)
