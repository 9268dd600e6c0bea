# A job file as it is: `mandor apply -f examples/nomad/cache.nomad.hcl`, or `mandor import` to see the manifest.
variable "version" {
  type    = string
  default = "7"
}

locals {
  image = "redis:${var.version}"
}

job "cache" {
  type     = "service"
  priority = 60

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  update {
    max_parallel     = 1
    min_healthy_time = "10s"
    healthy_deadline = "3m"
    auto_revert      = true
  }

  group "redis" {
    count = 2

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    affinity {
      attribute = "${meta.disk}"
      value     = "ssd"
      weight    = 70
    }

    network {
      port "db" {
        to = 6379
      }
    }

    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }

    task "redis" {
      driver = "docker"

      config {
        image = local.image
        args  = ["/local/redis.conf", "--port", "${NOMAD_PORT_db}"]
        ports = ["db"]
      }

      template {
        data        = <<-EOT
          maxmemory 100mb
          maxmemory-policy allkeys-lru
        EOT
        destination = "local/redis.conf"
      }

      resources {
        cores  = 1
        memory = 256
      }

      service {
        name = "cache"
        port = "db"

        check {
          type     = "tcp"
          interval = "10s"
          timeout  = "2s"
        }
      }
    }
  }
}
