// GM, findings, options and counters.
#include <stdexcept>

#include "check.h"

HOST_TEST(allocation) {
  for (size_t bytes : {0, 1, 63, 64, 65, 4096, 1000000}) {
    unsigned char* const p = gm_alloc<unsigned char>(bytes, "p");
    EXPECT(reinterpret_cast<uintptr_t>(p) % 64 == 0);
    for (size_t i = 0; i < bytes; ++i) {
      if (p[i] != 0xA5) EXPECT(false);
    }
    gm_free(p);
  }
  gm_free(nullptr);
  int x = 0;
  bool thrown = false;
  try {
    gm_free(&x);
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  EXPECT(thrown);
}

HOST_TEST(registered_memory) {
  static int in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
  EXPECT(launch(read_all, 1, 1)(in, out, 8) == ended);
  EXPECT(found("host_pointer")[0].message.find("GM source") != std::string::npos);
  register_gm(in, sizeof in, "in");
  register_gm(out, sizeof out, "out");
  EXPECT(launch(read_all, 1, 1)(in, out, 8) == ok);
  EXPECT(out[7] == 8);
  EXPECT(launch(read_all, 1, 1)(in + 1, out, 8) == ended);
  const Finding f = found("gm_out_of_bounds")[0];
  EXPECT(f.space == "GM" && f.object == "in" && f.offset == 4);
  register_gm(in, sizeof in, "again");  // more than once
  unregister_gm(in, sizeof in);
  EXPECT(launch(read_all, 1, 1)(in, out, 8) == ok);
  unregister_gm(in, sizeof in);
  EXPECT(launch(read_all, 1, 1)(in, out, 8) == ended);
  take_findings();
  bool thrown = false;
  try {
    unregister_gm(in, sizeof in);
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  EXPECT(thrown);
  unregister_gm(out, sizeof out);
}

HOST_TEST(memory_of_one_launch) {
  static int in[64], out[64];
  for (int i = 0; i < 64; ++i) in[i] = i;
  const GmSpan spans[] = {{in, sizeof in, "in", GmAccess::read_only, 4},
                          {out, sizeof out, "out", GmAccess::read_write, 4}};
  Options options;
  options.gm = spans;
  options.gm_count = 2;
  EXPECT(launch(read_all, 1, 1, options)(in, out, 64) == ok);
  EXPECT(out[63] == 63);
  EXPECT(launch(read_all, 1, 1, options)(out, in, 64) == ended);
  EXPECT(found("gm_read_only")[0].object == "in");
  EXPECT(launch(read_all, 1, 1)(in, out, 64) == ended);  // those spans were of the other launches
  take_findings();
  // One tensor as two operands, of which one may be written; and a part of it.
  const GmSpan twice[] = {{in, sizeof in, "const", GmAccess::read_only, 4},
                          {in, sizeof in, "mutable", GmAccess::read_write, 4},
                          {in + 8, 32, "part", GmAccess::read_only, 4},
                          {out, sizeof out, "out", GmAccess::read_write, 4}};
  options.gm = twice;
  options.gm_count = 4;
  EXPECT(launch(read_all, 1, 1, options)(in, out, 64) == ok);
  EXPECT(launch(read_all, 1, 1, options)(out, in, 64) == ok);
  EXPECT(launch(read_all, 1, 1, options)(out, in + 8, 8) == ok);
}

HOST_TEST(red_zones) {
  Gm<int> out(16, "out");
  launch(outside_of_bounds_by_store, 1, 1)(out, 16);
  const Finding f = take_findings().at(0);
  EXPECT(f.check == "gm_red_zone" || f.check == "gm_out_of_bounds");
  EXPECT(f.message.find("64") != std::string::npos && f.message.find("out") != std::string::npos);
  EXPECT(launch(nothing, 1, 1)() == ok && finding_count() == 0);  // reported once
  launch(outside_of_bounds_by_store, 1, 1)(out, -1);
  EXPECT(take_findings().size() == 1);
}

HOST_TEST(findings_are_kept_once_per_place) {
  Gm<int> in(256, "in"), out(16, "out");
  for (int i = 0; i < 3; ++i) launch(read_all, 1, 1)(in, out, 100);
  EXPECT(finding_count() == 1);
  static int heard = 0;
  on_finding([](const Finding&) { ++heard; });
  launch(read_all, 1, 1)(in, out, 100);  // known already
  EXPECT(heard == 0);
  const std::vector<Finding> all = take_findings();
  EXPECT(all.size() == 1 && all[0].count == 4);
  EXPECT(finding_count() == 0);
  launch(read_all, 1, 1)(in, out, 100);
  EXPECT(heard == 1);
  on_finding(nullptr);
  const Finding f = found("gm_out_of_bounds")[0];
  EXPECT(f.kernel == "read_all" && f.cluster == 0 && f.core == 0 && f.space == "GM" && f.object == "out" &&
         f.offset == 0);
  EXPECT(f.at.file.find("kernels.xpu") != std::string::npos && f.at.line > 0);
  const std::string text = to_text(f);
  for (const char* part :
       {"kernels.xpu:", "gm_out_of_bounds", "LM2GM of 400 bytes", "cluster 0, core 0", "GM out + 0", "seed=0"}) {
    EXPECT(text.find(part) != std::string::npos);
  }
}

HOST_TEST(text_of_options) {
  Options options;
  EXPECT(parse_options("", &options).empty());
  EXPECT(parse_options("seed=7,dma=random,llsc_failure=0.25,model.dma_fifo=1,poison=165,halt_on_first=true", &options)
             .empty());
  EXPECT(options.seed == 7 && options.dma == DmaPolicy::random && options.llsc_failure == 0.25 &&
         options.model.dma_fifo);
  EXPECT(options.poison == 165 && options.halt_on_first);
  Options again;
  EXPECT(parse_options(to_string(options), &again).empty());
  EXPECT(to_string(again) == to_string(options));
  EXPECT(to_string(Options()) == "seed=0");
  EXPECT(parse_options("sead=1", &options).find("expected an option name (seed, dma,") == 0);
  EXPECT(parse_options("dma=lazy", &options) == "expected a value for dma, got 'lazy'");
  EXPECT(parse_options("seed=", &options) == "expected a value for seed, got ''");
  EXPECT(parse_options("seed=1x", &options) == "expected a value for seed, got '1x'");
  for (const char* other : {"seed=-1", "seed=18446744073709551616", "workers=4294967297", "poison=4294967296"}) {
    EXPECT(parse_options(other, &options).find("expected a value for ") == 0);  // what does not fit is not cut off
  }
  EXPECT(options.seed == 7 && options.workers == 1 && options.poison == 165);
}

HOST_TEST(counters) {
  reset_report();
  Gm<int> in(200, "in", 1), out(8, "out");
  EXPECT(launch(cluster_sums, 2, 4)(in, out, 200) == ok);
  const Counters& c = last_counters();
  EXPECT(c.dma_ops[gm2lm] == 200 && c.dma_bytes[gm2lm] == 800);
  EXPECT(c.dma_ops[lm2gm] == 2 && c.dma_bytes[lm2gm] == 8);
  EXPECT(c.gm_lines == 202 && c.partial_lines == 2);
  EXPECT(c.barriers == 2 && c.fences == 10);
  EXPECT(c.max_core_dma_bytes == 25 * 4 + 4);
  EXPECT(c.sm_bytes == 256);
  EXPECT(c.lm_high > 0 && c.lm_high < 2048);
  EXPECT(launch(cluster_sums, 2, 4)(in, out, 100) == ok);
  EXPECT(launch(nothing, 1, 1)() == ok);
  const std::vector<KernelReport> all = report();
  EXPECT(all.size() == 2 && all[0].kernel == "cluster_sums" && all[0].launches == 2 && all[1].kernel == "nothing");
  EXPECT(all[0].counters.dma_bytes[gm2lm] == 1200 && all[0].counters.sm_bytes == 256);
  EXPECT(to_text(all).find("GM2LM: 1200 bytes in 300 copies") != std::string::npos);
  EXPECT(to_json(all).find("\"GM2LM\": {\"ops\": 300, \"bytes\": 1200}") != std::string::npos);
  reset_report();
  EXPECT(report().empty());
}

HOST_TEST(names) {
  Gm<float> x(16, "x", 1.0f);
  launch(scale_add<float>, 1, 1)(x, x + 8, 100, 1.0f);
  EXPECT(take_findings().at(0).kernel == "scale_add<float>");
  Options options;
  options.name = "my kernel";
  launch(scale_add<float>, 1, 1, options)(x, x + 8, 100, 1.0f);
  EXPECT(take_findings().at(0).kernel == "my kernel");
}
