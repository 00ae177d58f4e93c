-- Presence over time in buckets of `bucket_seconds`: per host, GPU-seconds for which a reading stands (over the bucket: GPUs present on average) (one host, or all when `host` is empty).
SELECT
    cluster, host,
    fromUnixTimestamp64Nano(intDiv(toUnixTimestamp64Nano(observed_at), {bucket_seconds:Int64} * 1000000000)
        * {bucket_seconds:Int64} * 1000000000, 'UTC') AS at,
    sum(interval_seconds) AS gpu_seconds,
    countIf(state != 'ok') AS not_ok
FROM gpu_reading FINAL
WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND observed_at < fromUnixTimestamp64Nano({until_at:Int64}, 'UTC')
  AND ({host:String} = '' OR host = {host:String})
GROUP BY cluster, host, at
ORDER BY cluster, host, at
SETTINGS do_not_merge_across_partitions_select_final = 1
