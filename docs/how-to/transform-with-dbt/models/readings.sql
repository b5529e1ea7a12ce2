-- Each record of the stream once, however often dbt runs and wherever it was stopped. The offsets of a shard only grow
-- in the table, so that what is above the last one is new.
{{ config(materialized='incremental', incremental_strategy='append') }}

SELECT
    _shard || '/' || _offset AS reading_id,
    _shard,
    _offset,
    _edge AS edge,
    _time AS taken_at,
    machine,
    temperature,
    _misfit IS NOT NULL AS is_misfit
FROM {{ source('weft', 'telemetry') }} AS log
{% if is_incremental() %}
WHERE _offset > coalesce((SELECT max(known._offset) FROM {{ this }} AS known WHERE known._shard = log._shard), -1)
{% endif %}
