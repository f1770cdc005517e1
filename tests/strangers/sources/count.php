<?php
// Counts its answers, over all workers, in memory that they share.
if (!apcu_exists("token")) {
    apcu_add("token", bin2hex(random_bytes(8)));
}
echo apcu_inc("count") . " " . apcu_fetch("token");
