# Written for the table of keys: what a job can say, once.
job "shop" {
  name        = "shop"
  id          = "shop"
  type        = "service"
  region      = "global"
  namespace   = "team"
  datacenters = ["east"]
  node_pool   = "web"
  priority    = 70
  all_at_once = true
  meta {
    owner = "me"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    operator  = "="
    value     = "linux"
  }
  affinity {
    attribute = "${node.unique.name}"
    operator  = "="
    value     = "n1"
    weight    = 60
  }
  spread {
    attribute = "${node.datacenter}"
    weight    = 80
    target "east" {
      percent = 60
    }
  }
  ui {
    description = "a shop"
  }
  consul {
    namespace = "a"
  }
  group "web" {
    count          = 4
    shutdown_delay = "3s"
    meta {
      group = "web"
    }
    constraint {
      distinct_hosts = true
    }
    network {
      mode     = "bridge"
      hostname = "web"
      port "http" {
        static       = 8080
        to           = 80
        host_network = "public"
        ignore_collision = true
      }
      dns {
        servers = ["1.1.1.1"]
      }
    }
    service {
      name         = "shop"
      port         = "http"
      tags         = ["a"]
      provider     = "nomad"
      address_mode = "host"
      canary_tags  = ["b"]
      on_update    = "require_healthy"
      meta {
        a = "b"
      }
      check {
        name                     = "alive"
        type                     = "http"
        path                     = "/ok"
        method                   = "GET"
        protocol                 = "http"
        interval                 = "10s"
        timeout                  = "2s"
        success_before_passing   = 1
        failures_before_critical = 2
        header {
          A = ["b"]
        }
        check_restart {
          limit           = 3
          grace           = "30s"
          ignore_warnings = false
        }
      }
    }
    ephemeral_disk {
      size    = 500
      sticky  = true
      migrate = true
    }
    volume "data" {
      type            = "csi"
      source          = "data"
      read_only       = false
      sticky          = false
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
      mount_options {
        fs_type = "ext4"
      }
    }
    update {
      max_parallel      = 2
      canary            = 1
      auto_promote      = true
      auto_revert       = true
      min_healthy_time  = "12s"
      healthy_deadline  = "6m"
      progress_deadline = "9m"
      health_check      = "checks"
      stagger           = "30s"
    }
    migrate {
      max_parallel     = 2
      health_check     = "checks"
      min_healthy_time = "12s"
      healthy_deadline = "5m"
    }
    restart {
      attempts         = 3
      interval         = "10m"
      delay            = "20s"
      mode             = "fail"
      render_templates = true
    }
    reschedule {
      attempts       = 3
      interval       = "1h"
      delay          = "40s"
      delay_function = "exponential"
      max_delay      = "30m"
      unlimited      = true
    }
    disconnect {
      lost_after           = "5m"
      stop_on_client_after = "1m"
      replace              = true
      reconcile            = "keep_replacement"
    }
    scaling {
      min     = 2
      max     = 6
      enabled = true
      policy {
        cooldown = "1m"
      }
    }
    task "app" {
      driver         = "docker"
      user           = "1000"
      leader         = true
      kill_signal    = "SIGINT"
      kill_timeout   = "20s"
      shutdown_delay = "1s"
      meta {
        task = "app"
      }
      config {
        image           = "shop:1"
        entrypoint      = ["/run"]
        command         = "serve"
        args            = ["--port", "80"]
        work_dir        = "/srv"
        ports           = ["http"]
        force_pull      = true
        init            = true
        privileged      = false
        readonly_rootfs = true
        cap_add         = ["net_admin"]
        cap_drop        = ["mknod"]
        network_mode    = "host"
        hostname        = "app"
        dns_servers     = ["1.1.1.1"]
        dns_search_domains = ["example"]
        dns_options     = ["ndots:2"]
        extra_hosts     = ["a:10.0.0.1"]
        shm_size        = 67108864
        runtime         = "runc"
        pids_limit      = 100
        cpu_hard_limit  = true
        cpuset_cpus     = "0"
        oom_score_adj   = 10
        security_opt    = ["seccomp=unconfined"]
        group_add       = ["video"]
        ipc_mode        = "host"
        pid_mode        = "host"
        uts_mode        = "host"
        userns_mode     = "host"
        cgroupns        = "host"
        interactive     = true
        tty             = false
        auth_soft_fail  = true
        image_pull_timeout = "5m"
        mac_address     = "02:42:ac:11:65:43"
        ipv4_address    = "10.5.0.2"
        network_aliases = ["www"]
        storage_opt = {
          size = "1G"
        }
        volumes = ["/srv/x:/x:ro"]
        tmpfs   = ["/tmp"]
        ulimit {
          nofile = "100:200"
        }
        sysctl = {
          "net.core.somaxconn" = "1024"
        }
        labels = {
          a = "b"
        }
        devices = [{
          host_path          = "/dev/a"
          container_path     = "/dev/b"
          cgroup_permissions = "r"
        }]
        mount {
          type     = "bind"
          source   = "/srv/y"
          target   = "/y"
          readonly = true
          bind_options {
            propagation = "rshared"
          }
        }
        logging {
          type = "syslog"
        }
        auth {
          username       = "me"
          password       = "secret"
          email          = "me@r.example"
          server_address = "r.example"
        }
      }
      env {
        LEVEL = "info"
      }
      resources {
        cpu        = 500
        memory     = 256
        memory_max = 512
        numa {
          affinity = "require"
        }
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "a"
            value     = "b"
          }
        }
      }
      template {
        data            = "port = {{ env \"NOMAD_PORT_http\" }}"
        destination     = "local/app.conf"
        perms           = "640"
        change_mode     = "restart"
        splay           = "5s"
        left_delimiter  = "{{"
        right_delimiter = "}}"
        uid             = 1000
      }
      template {
        data        = "A=b"
        destination = "secrets/env"
        env         = true
      }
      artifact {
        source      = "https://example.org/a.tar.gz"
        destination = "local/a"
        mode        = "any"
        options {
          checksum = "md5:d41d8cd98f00b204e9800998ecf8427e"
        }
      }
      volume_mount {
        volume           = "data"
        destination      = "/data"
        read_only        = false
        propagation_mode = "private"
      }
      vault {
        policies = ["shop"]
      }
      identity {
        name = "a"
      }
      logs {
        max_files     = 3
        max_file_size = 15
        disabled      = false
      }
    }
    task "ship" {
      driver = "docker"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      config {
        memory_hard_limit = 1024
        image = "vector:1"
      }
    }
    task "beside" {
      driver = "docker"
      config {
        image = "beside:1"
      }
    }
    task "after" {
      driver = "docker"
      lifecycle {
        hook = "poststop"
      }
      config {
        image = "after:1"
      }
    }
  }
}
job "nightly" {
  type = "batch"
  periodic {
    crons            = ["0 3 * * *"]
    time_zone        = "Asia/Jakarta"
    prohibit_overlap = true
    enabled          = true
  }
  parameterized {
    payload       = "optional"
    meta_required = ["a"]
  }
  group "run" {
    count = 2
    reschedule {
      attempts = 2
      interval = "1h"
    }
    task "run" {
      driver = "raw_exec"
      config {
        command  = "/bin/run"
        args     = ["a"]
        work_dir = "/srv"
      }
      resources {
        cores = 2
      }
      dispatch_payload {
        file = "a"
      }
    }
  }
}
