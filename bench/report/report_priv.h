/* Shared by the files of this folder. */
#ifndef BATON_BENCH_REPORT_PRIV_H
#define BATON_BENCH_REPORT_PRIV_H

#include "baton/bench/report.h"

/* One run asked for. */
struct report_cell {
    struct bt_sim_config config;
    bool keep_samples;
};

/* Run cells[i] into results[i], in child processes. BT_NO_MEMORY, BT_IO. */
enum bt_status report_pool_run(const struct report_cell *cells, size_t count,
                               const struct bt_report_jobs *jobs,
                               struct bt_report_result *results);

/* A figure of a summary: its name in JSON and on pages. */
struct report_field {
    const char *name; /* with its unit */
    size_t offset;    /* of a double in struct bt_sim_summary */
};
extern const struct report_field REPORT_FIELDS[];
extern const size_t REPORT_FIELD_COUNT;
double report_field_value(const struct report_field *field,
                          const struct bt_sim_summary *summary);
/* *mean becomes the mean of count summaries, counts included. */
void report_summary_mean(const struct bt_sim_summary *const *items,
                         size_t count, struct bt_sim_summary *mean);
/* Mean over the results that did not fail. */
void report_row_make(const struct bt_report_result *results, uint32_t count,
                     struct bt_report_row *out);

/* JSON pieces (json.c). Numbers that are not finite become null. */
void report_json_text(FILE *to, const char *text);
void report_json_number(FILE *to, const char *name, double value);
void report_json_summary(FILE *to, const struct bt_sim_summary *summary);
void report_json_result(FILE *to, const struct bt_report_result *result);
/* Members of an object: policy, cluster, fabric, trace, ... */
void report_json_config(FILE *to, const struct bt_sim_config *config);
void report_json_difference(FILE *to, const struct bt_report_difference *d);
/* The body of the cells array. */
void report_json_cells(FILE *to, const struct bt_report_matrix *matrix);
void report_json_setup(FILE *to, const struct bt_report_setup *setup);
void report_json_capacity(FILE *to, const struct bt_report_setup *setup,
                          const struct bt_report_capacity *capacity);

/* Names of metrics as they stand in every output. */
const char *report_sample_name(enum bt_report_sample sample);
const char *report_stat_name(enum bt_report_stat stat);

/* One comparison of the A/B report. */
struct report_comparison {
    uint32_t scenario, load, rival;
    enum bt_report_sample sample;
    enum bt_report_stat stat;
    struct bt_report_difference difference;
};
/* Everything the written report shows. */
struct report_book {
    const struct bt_report_setup *setup;
    const struct bt_report_options *options;
    const struct bt_report_matrix *matrix;
    const struct bt_report_capacity *capacity;
    const struct report_comparison *comparisons;
    size_t comparison_count;
    uint32_t subject;          /* arm */
    const char *plots_missing; /* why there are none; NULL: there are */
};
enum bt_status report_book_json(const struct report_book *book, FILE *to);
enum bt_status report_book_text(const struct report_book *book, FILE *to);
enum bt_status report_book_page(const struct report_book *book, FILE *to);
/* Data and scripts under DIR/plots, rendered by gnuplot. BT_NOT_FOUND: there
 * is no gnuplot; BT_IO. */
enum bt_status report_plots_make(const struct report_book *book);
/* Path of a plot: kind is one of REPORT_PLOT_KINDS. */
void report_plot_path(const struct report_book *book, uint32_t scenario,
                      const char *kind, const char *ending, char *path,
                      size_t size);
struct report_plot_kind {
    const char *kind, *title, *unit;
    size_t offset; /* in struct bt_sim_summary */
    double scale;
    bool log;
};
extern const struct report_plot_kind REPORT_PLOT_KINDS[];
extern const size_t REPORT_PLOT_KIND_COUNT;

/* A cluster's fabrics and trace as one line of text. */
void report_describe(const struct bt_sim_config *config, char *text,
                     size_t size);
void report_describe_knowledge(const struct bt_sim_knowledge *knowledge,
                               char *text, size_t size);
/* The text in lines of at most 120 columns, the later ones indented. */
void report_wrap(FILE *to, const char *text);

/* The arrivals of a run that are measured. */
struct report_window {
    double seconds, rate_per_s; /* 0: unknown */
    bool is_short; /* a burst: too few seconds for a steady state */
};
void report_window_get(const struct bt_sim_config *config,
                       struct report_window *window_out);
/* At the speed that was found; not short where none was. */
void report_capacity_window(const struct bt_report_setup *setup,
                            uint32_t scenario, uint32_t arm,
                            const struct bt_report_capacity *capacity,
                            struct report_window *window_out);

#endif
