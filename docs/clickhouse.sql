-- Generated from passmuster/records.py by `muster records docs --write`.

CREATE TABLE IF NOT EXISTS `gpu_reading`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `device_id` String CODEC(ZSTD(1)),
    `vendor` LowCardinality(String),
    `model` LowCardinality(String),
    `pci_address` LowCardinality(String),
    `index` Nullable(Int64) CODEC(ZSTD(1)),
    `partition` LowCardinality(Nullable(String)),
    `state` LowCardinality(String) DEFAULT 'unknown',
    `interval_seconds` Float64 DEFAULT 0.0 CODEC(ZSTD(1)),
    `samples` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `epoch` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `power_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_min_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_max_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_average_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_limit_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `energy_joules_total` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_core_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_core_max_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_edge_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_hotspot_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_hotspot_max_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_memory_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_memory_max_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_hbm_celsius` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `temperature_margin_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_slowdown_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_shutdown_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_memory_limit_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_min_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_max_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_limit_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_sm_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_memory_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_soc_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_compute_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_compute_min_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_compute_max_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_memory_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `sm_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `sm_occupancy_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `tensor_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `dram_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `memory_total_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_used_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_reserved_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `throttle_ratio` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `throttle_seconds_total` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `ecc_enabled` Nullable(Bool) CODEC(ZSTD(1)),
    `ecc_corrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_uncorrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_deferred_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_corrected_lifetime_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_uncorrected_lifetime_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_blocks_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `sram_threshold_exceeded` Nullable(Bool) CODEC(ZSTD(1)),
    `rows_remapped_corrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `rows_remapped_uncorrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `row_remap_pending` Nullable(Bool) CODEC(ZSTD(1)),
    `row_remap_failed` Nullable(Bool) CODEC(ZSTD(1)),
    `row_remap_banks` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `repair_pending` Nullable(Bool) CODEC(ZSTD(1)),
    `memory_unrepairable` Nullable(Bool) CODEC(ZSTD(1)),
    `bad_pages_reserved` Nullable(Int64) CODEC(ZSTD(1)),
    `bad_pages_pending` Nullable(Int64) CODEC(ZSTD(1)),
    `bad_pages_unreservable` Nullable(Int64) CODEC(ZSTD(1)),
    `bad_pages_limit` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_generation` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_generation_max` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_width` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_width_max` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `pcie_transmit_bytes_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `pcie_receive_bytes_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `links_up` Nullable(Int64) CODEC(ZSTD(1)),
    `links_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `links` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `link_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `link_bytes_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `link_bit_error_ratio` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `link_error_status` Nullable(Int64) CODEC(ZSTD(1)),
    `fabric_state` LowCardinality(Nullable(String)),
    `fabric_status` Nullable(Int64) CODEC(ZSTD(1)),
    `fabric_health` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `recovery_action` LowCardinality(Nullable(String)),
    `processes` Nullable(Int64) CODEC(ZSTD(1)),
    `process_memory_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `mig_enabled` Nullable(Bool) CODEC(ZSTD(1)),
    `compute_partition` LowCardinality(Nullable(String)),
    `memory_partition` LowCardinality(Nullable(String)),
    `missing` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMMDD(`observed_at`)
ORDER BY (toStartOfHour(observed_at), `cluster`, `host`, `device_id`, `observed_at`)
TTL toDateTime(`observed_at`) + toIntervalDay(90)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS `host_reading`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `agent_version` LowCardinality(String) DEFAULT '',
    `kernel` LowCardinality(Nullable(String)),
    `drivers` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `uptime_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `gpus_expected` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `gpus_seen` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `services` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `load_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `memory_total_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_available_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `nic_links` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `nic_rates` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `nic_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `aer_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `collectors` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `collect_seconds` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `agent_cpu_seconds_total` Nullable(Float64) CODEC(ZSTD(1)),
    `agent_memory_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `spool_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `spool_oldest_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `spool_dropped_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `kernel_log_lost_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `clock_steps_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `missing` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMMDD(`observed_at`)
ORDER BY (toStartOfHour(observed_at), `cluster`, `host`, `observed_at`)
TTL toDateTime(`observed_at`) + toIntervalDay(90)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS `inventory`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `device_id` String CODEC(ZSTD(1)),
    `valid_from_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `valid_until_at` Nullable(DateTime64(9, 'UTC')) CODEC(DoubleDelta, ZSTD(1)),
    `vendor` LowCardinality(String),
    `model` LowCardinality(String) DEFAULT '',
    `architecture` LowCardinality(Nullable(String)),
    `serial` Nullable(String) CODEC(ZSTD(1)),
    `uuid` Nullable(String) CODEC(ZSTD(1)),
    `pci_address` LowCardinality(String) DEFAULT '',
    `index` Nullable(Int64) CODEC(ZSTD(1)),
    `board_part_number` LowCardinality(Nullable(String)),
    `memory_total_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_vendor` LowCardinality(Nullable(String)),
    `vbios` LowCardinality(Nullable(String)),
    `firmware` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `driver` LowCardinality(Nullable(String)),
    `numa_node` Nullable(Int64) CODEC(ZSTD(1)),
    `slot` LowCardinality(Nullable(String)),
    `rack` LowCardinality(Nullable(String)),
    `pool` LowCardinality(Nullable(String)),
    `power_domain` LowCardinality(Nullable(String)),
    `cooling_domain` LowCardinality(Nullable(String)),
    `switch` LowCardinality(Nullable(String)),
    `fabric_domain` Nullable(String) CODEC(ZSTD(1)),
    `in_service_at` Nullable(DateTime64(9, 'UTC')) CODEC(DoubleDelta, ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`valid_from_at`)
ORDER BY (`device_id`, `valid_from_at`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `fault_event`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `device_id` String DEFAULT '' CODEC(ZSTD(1)),
    `vendor` LowCardinality(String),
    `model` LowCardinality(String) DEFAULT '',
    `pci_address` LowCardinality(Nullable(String)),
    `source` LowCardinality(String),
    `kind` LowCardinality(String),
    `code` LowCardinality(String),
    `block` LowCardinality(Nullable(String)),
    `fault_class` LowCardinality(String),
    `severity` LowCardinality(String),
    `blame` LowCardinality(String) DEFAULT 'unclear',
    `secondary` Bool DEFAULT false CODEC(ZSTD(1)),
    `count` Int64 DEFAULT 1 CODEC(ZSTD(1)),
    `first_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `last_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `text` String DEFAULT '' CODEC(ZSTD(1)),
    `trust` LowCardinality(String),
    `link` LowCardinality(Nullable(String)),
    `pid` Nullable(Int64) CODEC(ZSTD(1)),
    `process` LowCardinality(Nullable(String)),
    `table_version` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`first_at`)
ORDER BY (`cluster`, `host`, `boot_id`, `device_id`, `code`, `first_at`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `check_state`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `subject_kind` LowCardinality(String),
    `subject_id` String CODEC(ZSTD(1)),
    `check` LowCardinality(String),
    `check_version` Int64 DEFAULT 1 CODEC(ZSTD(1)),
    `state` LowCardinality(String),
    `since_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `reason` String DEFAULT '' CODEC(ZSTD(1)),
    `value` Nullable(Float64) CODEC(ZSTD(1)),
    `bound` Nullable(Float64) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`since_at`)
ORDER BY (`cluster`, `host`, `subject_kind`, `subject_id`, `check`, `since_at`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `check_result`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `screen_id` String CODEC(ZSTD(1)),
    `mode` LowCardinality(String) DEFAULT '',
    `device_id` String CODEC(ZSTD(1)),
    `vendor` LowCardinality(String),
    `model` LowCardinality(String) DEFAULT '',
    `workload` LowCardinality(String),
    `seed` Int64 CODEC(ZSTD(1)),
    `unit` LowCardinality(String) DEFAULT '',
    `executions` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `mismatches` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `classes` Array(LowCardinality(String)) CODEC(ZSTD(1)),
    `digest` Nullable(String) CODEC(ZSTD(1)),
    `reference` Nullable(String) CODEC(ZSTD(1)),
    `kernel` Nullable(String) CODEC(ZSTD(1)),
    `cohort` Nullable(String) CODEC(ZSTD(1)),
    `voters` Nullable(Int64) CODEC(ZSTD(1)),
    `log_odds` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `power_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `latency_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `rate` Nullable(Float64) CODEC(ZSTD(1)),
    `verdict` LowCardinality(String),
    `reason` String DEFAULT '' CODEC(ZSTD(1)),
    `origin` LowCardinality(String) DEFAULT 'agent',
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`observed_at`)
ORDER BY (`screen_id`, `device_id`, `workload`, `seed`, `unit`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `job_run`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `job` String CODEC(ZSTD(1)),
    `attempt` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `tenant` LowCardinality(String) DEFAULT '',
    `workload` LowCardinality(String) DEFAULT '',
    `devices` Array(String) CODEC(ZSTD(1)),
    `world_size` Nullable(Int64) CODEC(ZSTD(1)),
    `batch_size` Nullable(Int64) CODEC(ZSTD(1)),
    `software` Nullable(String) CODEC(ZSTD(1)),
    `started_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`observed_at`)
ORDER BY (`cluster`, `job`, `attempt`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `job_outcome`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `job` String CODEC(ZSTD(1)),
    `attempt` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `tenant` LowCardinality(String) DEFAULT '',
    `ended_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `duration_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `exit_code` Nullable(Int64) CODEC(ZSTD(1)),
    `outcome` LowCardinality(String) DEFAULT 'unknown',
    `cause` LowCardinality(Nullable(String)),
    `cause_confidence` Nullable(Float64) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`observed_at`)
ORDER BY (`cluster`, `job`, `attempt`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `step_timing`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `job` String CODEC(ZSTD(1)),
    `attempt` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `tenant` LowCardinality(String) DEFAULT '',
    `rank` Int64 CODEC(ZSTD(1)),
    `step` Int64 CODEC(ZSTD(1)),
    `device_id` String DEFAULT '' CODEC(ZSTD(1)),
    `wall_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `compute_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `exposed_communication_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `idle_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `data_wait_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `samples` Nullable(Int64) CODEC(ZSTD(1)),
    `energy_joules` Nullable(Float64) CODEC(ZSTD(1)),
    `peak_memory_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMMDD(`observed_at`)
ORDER BY (`cluster`, `job`, `attempt`, `rank`, `step`)
TTL toDateTime(`observed_at`) + toIntervalDay(90)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS `kernel_timing`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `job` String CODEC(ZSTD(1)),
    `attempt` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `tenant` LowCardinality(String) DEFAULT '',
    `rank` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `window_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `device_id` String DEFAULT '' CODEC(ZSTD(1)),
    `vendor` LowCardinality(String),
    `provider` LowCardinality(String) DEFAULT '',
    `kernel` String CODEC(ZSTD(1)),
    `category` LowCardinality(String) DEFAULT 'other',
    `sub_category` LowCardinality(String) DEFAULT '',
    `workload` LowCardinality(String) DEFAULT '',
    `steps` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `calls` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `sum_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `union_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `exclusive_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `p50_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `p99_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `moved_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `flop` Nullable(Float64) CODEC(ZSTD(1)),
    `classifier_version` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `software` Nullable(String) CODEC(ZSTD(1)),
    `coverage_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMMDD(`window_at`)
ORDER BY (`cluster`, `job`, `attempt`, `rank`, `window_at`, `kernel`)
TTL toDateTime(`window_at`) + toIntervalDay(90)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS `finding`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `dedup_key` String CODEC(ZSTD(1)),
    `opened_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `last_seen_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `cleared_at` Nullable(DateTime64(9, 'UTC')) CODEC(DoubleDelta, ZSTD(1)),
    `detector` LowCardinality(String),
    `detector_version` Int64 DEFAULT 1 CODEC(ZSTD(1)),
    `mode` LowCardinality(String) DEFAULT 'shadow',
    `code` LowCardinality(String),
    `subject_kind` LowCardinality(String),
    `subject_id` String CODEC(ZSTD(1)),
    `device_id` String DEFAULT '' CODEC(ZSTD(1)),
    `vendor` LowCardinality(String) DEFAULT 'none',
    `model` LowCardinality(String) DEFAULT '',
    `pci_address` LowCardinality(Nullable(String)),
    `fault_class` LowCardinality(String),
    `severity` LowCardinality(String),
    `secondary` Bool DEFAULT false CODEC(ZSTD(1)),
    `title` String CODEC(ZSTD(1)),
    `next_step` String DEFAULT '' CODEC(ZSTD(1)),
    `log_odds` Nullable(Float64) CODEC(ZSTD(1)),
    `value` Nullable(Float64) CODEC(ZSTD(1)),
    `bound` Nullable(Float64) CODEC(ZSTD(1)),
    `evidence` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`opened_at`)
ORDER BY (`cluster`, `dedup_key`, `opened_at`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `hold_event`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `event_id` String CODEC(ZSTD(1)),
    `hold_id` String CODEC(ZSTD(1)),
    `device_id` String DEFAULT '' CODEC(ZSTD(1)),
    `kind` LowCardinality(String),
    `actor` LowCardinality(String),
    `reason` String DEFAULT '' CODEC(ZSTD(1)),
    `check` LowCardinality(String) DEFAULT '',
    `fault_class` LowCardinality(Nullable(String)),
    `value` Nullable(Float64) CODEC(ZSTD(1)),
    `bound` Nullable(Float64) CODEC(ZSTD(1)),
    `expires_at` Nullable(DateTime64(9, 'UTC')) CODEC(DoubleDelta, ZSTD(1)),
    `releases_when` String DEFAULT '' CODEC(ZSTD(1)),
    `policy_hash` LowCardinality(String) DEFAULT '',
    `idempotency_key` String DEFAULT '' CODEC(ZSTD(1)),
    `evidence` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
PARTITION BY toYYYYMM(`observed_at`)
ORDER BY (`cluster`, `event_id`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `gpu_reading_latest`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `device_id` String CODEC(ZSTD(1)),
    `vendor` LowCardinality(String),
    `model` LowCardinality(String),
    `pci_address` LowCardinality(String),
    `index` Nullable(Int64) CODEC(ZSTD(1)),
    `partition` LowCardinality(Nullable(String)),
    `state` LowCardinality(String) DEFAULT 'unknown',
    `interval_seconds` Float64 DEFAULT 0.0 CODEC(ZSTD(1)),
    `samples` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `epoch` Int64 DEFAULT 0 CODEC(ZSTD(1)),
    `power_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_min_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_max_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_average_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `power_limit_watts` Nullable(Float64) CODEC(ZSTD(1)),
    `energy_joules_total` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_core_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_core_max_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_edge_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_hotspot_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_hotspot_max_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_memory_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_memory_max_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_hbm_celsius` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `temperature_margin_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_slowdown_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_shutdown_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `temperature_memory_limit_celsius` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_min_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_max_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_graphics_limit_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_sm_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_memory_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `clock_soc_hertz` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_compute_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_compute_min_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_compute_max_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `activity_memory_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `sm_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `sm_occupancy_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `tensor_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `dram_activity_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `memory_total_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_used_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_reserved_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `throttle_ratio` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `throttle_seconds_total` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `ecc_enabled` Nullable(Bool) CODEC(ZSTD(1)),
    `ecc_corrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_uncorrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_deferred_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_corrected_lifetime_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_uncorrected_lifetime_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `ecc_blocks_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `sram_threshold_exceeded` Nullable(Bool) CODEC(ZSTD(1)),
    `rows_remapped_corrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `rows_remapped_uncorrected_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `row_remap_pending` Nullable(Bool) CODEC(ZSTD(1)),
    `row_remap_failed` Nullable(Bool) CODEC(ZSTD(1)),
    `row_remap_banks` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `repair_pending` Nullable(Bool) CODEC(ZSTD(1)),
    `memory_unrepairable` Nullable(Bool) CODEC(ZSTD(1)),
    `bad_pages_reserved` Nullable(Int64) CODEC(ZSTD(1)),
    `bad_pages_pending` Nullable(Int64) CODEC(ZSTD(1)),
    `bad_pages_unreservable` Nullable(Int64) CODEC(ZSTD(1)),
    `bad_pages_limit` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_generation` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_generation_max` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_width` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_width_max` Nullable(Int64) CODEC(ZSTD(1)),
    `pcie_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `pcie_transmit_bytes_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `pcie_receive_bytes_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `links_up` Nullable(Int64) CODEC(ZSTD(1)),
    `links_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `links` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `link_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `link_bytes_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `link_bit_error_ratio` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `link_error_status` Nullable(Int64) CODEC(ZSTD(1)),
    `fabric_state` LowCardinality(Nullable(String)),
    `fabric_status` Nullable(Int64) CODEC(ZSTD(1)),
    `fabric_health` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `recovery_action` LowCardinality(Nullable(String)),
    `processes` Nullable(Int64) CODEC(ZSTD(1)),
    `process_memory_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `mig_enabled` Nullable(Bool) CODEC(ZSTD(1)),
    `compute_partition` LowCardinality(Nullable(String)),
    `memory_partition` LowCardinality(Nullable(String)),
    `missing` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
ORDER BY (`cluster`, `host`, `device_id`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;

CREATE TABLE IF NOT EXISTS `host_reading_latest`
(
    `cluster` LowCardinality(String),
    `host` String CODEC(ZSTD(1)),
    `boot_id` LowCardinality(String),
    `observed_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    `agent_version` LowCardinality(String) DEFAULT '',
    `kernel` LowCardinality(Nullable(String)),
    `drivers` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `uptime_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `gpus_expected` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `gpus_seen` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `services` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `load_ratio` Nullable(Float64) CODEC(ZSTD(1)),
    `memory_total_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `memory_available_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `nic_links` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `nic_rates` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `nic_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `aer_errors_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `collectors` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `collect_seconds` Map(LowCardinality(String), Float64) CODEC(ZSTD(1)),
    `agent_cpu_seconds_total` Nullable(Float64) CODEC(ZSTD(1)),
    `agent_memory_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `spool_bytes` Nullable(Int64) CODEC(ZSTD(1)),
    `spool_oldest_seconds` Nullable(Float64) CODEC(ZSTD(1)),
    `spool_dropped_total` Map(LowCardinality(String), Int64) CODEC(ZSTD(1)),
    `kernel_log_lost_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `clock_steps_total` Nullable(Int64) CODEC(Delta, ZSTD(1)),
    `missing` Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    `schema_version` UInt16 CODEC(ZSTD(1)),
    `ingested_at` DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(`observed_at`)
ORDER BY (`cluster`, `host`)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024, min_bytes_for_wide_part = 67108864;
